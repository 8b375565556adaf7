// Asks for the page again, and replaces the content where it has changed. Without scripts a person
// reloads. The place, the focus and what was typed stay.
"use strict";
const seconds = Number(document.currentScript.dataset.seconds);
let etag = "";
async function refresh() {
  if (document.hidden || document.activeElement?.matches("input, select")) return;
  const answer = await fetch(location.href, etag ? { headers: { "If-None-Match": etag } } : {});
  if (answer.status !== 200) return;
  etag = answer.headers.get("ETag") ?? "";
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const name of ["main", "header"]) {
    const [now, then] = [document.querySelector(name), fresh.querySelector(name)];
    if (then && now.innerHTML !== then.innerHTML) now.innerHTML = then.innerHTML;
  }
}
if (seconds > 0) setInterval(() => refresh().catch(() => {}), 1000 * Math.max(5, seconds / 2));
