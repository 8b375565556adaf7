#!/bin/sh
# Installs the Debian packages of the tests that are missing: setup.sh test | ci-setup
#
# CI_PACKAGES is the Makefile's table: a group of packages in each line and, after a colon, what
# does not run without them. Nothing that is installed is removed, and no service is replaced,
# started or enabled. `test` installs only as root and never fails; `ci-setup` has to succeed.
set -eu
purpose=$1
ONLY_NEW="--no-install-recommends --no-upgrade"
export LC_ALL=C DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
LEAVE_OUT=
[ "$purpose" = ci-setup ] || LEAVE_OUT=" (SETUP=0 leaves it out)"
policy=${DPKG_ROOT:-}/usr/sbin/policy-rc.d # what Debian's packages ask before they start a service

missing() { # those of these packages that are not installed
  for package in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) in
    ?i*) ;;
    *) printf '%s ' "$package" ;;
    esac
  done
}

files() { # what these packages have that systemd or an init system starts
  dpkg-query -L "$@" 2>/dev/null |
    grep -E '/systemd/system/[^/]*\.(service|socket|timer|path)$|^/etc/init\.d/.' || true
}

start_no_service() { # until this script ends, even if it is killed
  if [ -x "$policy" ]; then
    "$policy" a-service start >/dev/null 2>&1 && status=0 || status=$?
    [ "$status" != 101 ] || return 0
    cp -p "$policy" "$policy.before"
  fi
  trap 'if [ -e "$policy.before" ]; then mv "$policy.before" "$policy"; else rm -f "$policy"; fi' EXIT
  trap 'exit 130' INT TERM HUP
  cat >"$policy.new" <<EOF
#!/bin/sh
# The setup of vgpu's tests starts no service while it installs packages, as process $$.
kill -0 $$ 2>/dev/null && exit 101
[ ! -x $policy.before ] || exec $policy.before "\$@"
EOF
  chmod 755 "$policy.new"
  mv "$policy.new" "$policy"
}

enable_no_service() { # of these packages, which are new
  files "$@" | while read -r file; do
    name=${file##*/}
    case $file in
    /etc/init.d/*) update-rc.d "$name" disable ;;
    *) if command -v systemctl; then systemctl --root="${DPKG_ROOT:-/}" disable "$name"; else
      DPKG_MAINTSCRIPT_PACKAGE=$name deb-systemd-helper disable "$name"
    fi ;;
    esac >/dev/null 2>&1 || true
  done
}

replaced() { # what a plan of apt removes, and the services and packages of the table that it renews
  printf '%s\n' "$1" | sed -n 's/^Remv \([^ ]*\).*/\1/p'
  for package in $(printf '%s\n' "$1" | sed -n 's/^Inst \([^ ]*\) \[.*/\1/p'); do
    case " $packages_of_all " in
    *" $package "*) echo "$package" ;;
    *) [ -z "$(files "$package")" ] || echo "$package" ;;
    esac
  done
}

not_installed() { # what needs it, and the reason
  echo "Not installed: ${wanted% } ($2). Without it these tests do not run:$1" >&2
}

install_group() { # the packages of one line, and what needs them
  # shellcheck disable=SC2086  # lists of words
  wanted=$(missing $1)
  [ -n "$wanted" ] || return 0
  # Simulated without --no-remove, apt says what it would remove.
  # shellcheck disable=SC2086
  if ! plan=$(apt-get -s -q install $ONLY_NEW $wanted 2>&1 </dev/null); then
    not_installed "$2" "$(printf '%s\n' "$plan" | grep '^E:' | tail -n 1)"
    return 1
  fi
  taken=$(replaced "$plan" | sort -u | tr '\n' ' ')
  if [ -n "$taken" ]; then
    not_installed "$2" "apt would remove or replace ${taken% }"
    return 0
  fi
  # shellcheck disable=SC2086
  if ! apt-get install -y -qq -o DPkg::Lock::Timeout=300 $ONLY_NEW --no-remove $wanted \
    </dev/null >/dev/null; then
    not_installed "$2" "apt-get failed"
    return 1
  fi
  # shellcheck disable=SC2046
  enable_no_service $(printf '%s\n' "$plan" | sed -n 's/^Inst \([^ ]*\) (.*/\1/p')
}

if [ "$purpose" = test ] && [ "${SETUP:-1}" = 0 ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null; then
  echo "make $purpose: the packages of the tests are Debian's, and this machine has no apt-get"
  [ "$purpose" = test ] && exit 0 || exit 1
fi
packages_of_all=$(printf '%s\n' "$CI_PACKAGES" | cut -d: -f1 | tr '\n' ' ')
# shellcheck disable=SC2086
all_wanted=$(missing $packages_of_all)
if [ "$(id -u)" != 0 ]; then
  if [ "$purpose" = ci-setup ]; then
    echo "make ci-setup: only root can install packages. Type: sudo make ci-setup" >&2
    exit 1
  elif [ -n "$all_wanted" ]; then
    echo "To run every test, type once: sudo make ci-setup (it installs ${all_wanted% })"
  else
    echo "To run every test, type: sudo make test (a real Kubernetes needs root)"
  fi
  exit 0
fi
[ -n "$all_wanted" ] || exit 0
echo "make $purpose installs what the tests need$LEAVE_OUT: ${all_wanted% }"
apt-get update -qq || echo "apt-get update failed" >&2
start_no_service
failed=0
while IFS=: read -r packages tests; do
  [ -z "$packages" ] || install_group "$packages" "$tests" || failed=1
done <<EOF
$CI_PACKAGES
EOF
[ "$purpose" = test ] || exit $failed
