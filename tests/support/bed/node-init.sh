#!/bin/bash
# The init of a node: a machine of its own as far as processes, mounts, network, host name and
# cgroups go. Killing it ends everything in it, as a power cut would.
#
# Called with FOLDER (root/, usr/upper, usr/work, boot-id are in it), NODE_NAME, CGROUPS (folders)
# and VISIBLE (folders that the node shall see, whatever they lie in).
set -euo pipefail

if [ "${1:-}" != inside ]; then
  for cgroup in $CGROUPS; do echo 0 >"$cgroup/cgroup.procs"; done
  exec unshare --fork --kill-child --pid --mount --net --uts --ipc --cgroup bash "$0" inside
fi
for cgroup in $CGROUPS; do echo 0 >"$cgroup/init/cgroup.procs"; done

# A root of its own: /etc and /var are folders of the node and stay over a reboot, as does what is
# written to /usr; /run and /dev are new at each boot; the rest of the machine shows through.
mount --bind "$FOLDER/root" "$FOLDER/root"
cd "$FOLDER/root"
for entry in /*; do
  case $entry in
    /proc | /sys | /dev | /run | /usr) mkdir -p ".$entry" ;;
    /etc | /var | /lost+found) ;;
    *)
      if [ -L "$entry" ]; then
        cp --archive --no-clobber "$entry" ".$entry"
      elif [ -d "$entry" ]; then
        mkdir -p ".$entry"
        mount --rbind "$entry" ".$entry"
      fi
      ;;
  esac
done
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$FOLDER/usr/upper,workdir=$FOLDER/usr/work" usr
mount -t tmpfs -o mode=755 tmpfs run

mount -t tmpfs -o mode=755 tmpfs dev
cp --archive /dev/{null,zero,full,random,urandom,tty,kmsg} dev
mkdir dev/{pts,shm,mqueue}
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t mqueue mqueue dev/mqueue
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

mount -t proc proc proc
mount --bind "$FOLDER/boot-id" proc/sys/kernel/random/boot_id
# The kubelet sets these for the whole machine; here it sets files that look like them.
mkdir run/sysctl
for name in vm/{overcommit_memory,panic_on_oom} kernel/{panic,panic_on_oops} \
  kernel/keys/{root_maxkeys,root_maxbytes}; do
  cat "proc/sys/$name" >"run/sysctl/${name//\//.}"
  mount --bind "run/sysctl/${name//\//.}" "proc/sys/$name"
done

mount -t sysfs sysfs sys
[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
for cgroup in $CGROUPS; do
  hierarchy=$(dirname "$cgroup")
  mkdir -p ".$hierarchy"
  mount --bind "$cgroup" ".$hierarchy"
done

for folder in $VISIBLE; do
  if [ ! -e ".$folder" ]; then
    mkdir -p ".$folder"
    mount --rbind "$folder" ".$folder"
  fi
done

mkdir -p .machine
pivot_root . .machine
cd /
umount --lazy /.machine
rmdir /.machine
umount --recursive --lazy "$FOLDER/root" # where it shows through a second time
mount --make-rshared / # as systemd does, and pods with mountPropagation ask for

hostname "$NODE_NAME"
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
touch /run/booted

# Bash reaps whatever is left to it, shims above all.
while :; do
  sleep infinity &
  wait
done
