// Says how old the figures are and that the server keeps somebody waiting, and asks for figures when the socket
// is silent. htmx does the rest.
(() => {
  "use strict";

  const OLD_S = 3; // from here on the age is shown
  const ASK_S = 5; // from here on the page asks by itself, as often
  const SLOW_S = 1.5; // an answer that takes longer is told of

  const live = document.getElementById("live");
  if (!live) return;
  const words = live.querySelector("span");
  const now = () => performance.now() / 1000;

  // A page that the browser kept from before is as old as its figures, wherever they came from.
  let taken = now();
  let asked = now();

  const readAge = () => {
    const shown = document.querySelector("[data-age-s]");
    if (shown) taken = now() - Number(shown.dataset.ageS);
  };

  const inWords = (seconds) => {
    if (seconds < 60) return `${Math.round(seconds)} s old`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min old`;
    return `${Math.floor(seconds / 3600)} h old`;
  };

  // What was asked and is not answered. By the state of each: an element that was swapped out tells nobody.
  const asking = new Map();
  const waited = () => {
    for (const ctx of asking.keys()) if (ctx.response || `${ctx.status}`.startsWith("error")) asking.delete(ctx);
    return Math.max(0, ...[...asking.values()].map((at) => now() - at));
  };
  document.addEventListener("htmx:before:request", ({ detail }) => asking.set(detail.ctx, now()));

  const tick = () => {
    const age = now() - taken;
    const slow = waited();
    live.classList.toggle("old", age > OLD_S || slow > SLOW_S);
    let text = age > OLD_S ? inWords(age) : "Live";
    if (slow > SLOW_S) text = `Waiting for the server, ${Math.round(slow)} s`;
    if (words.textContent !== text) words.textContent = text;
    if (age > ASK_S && now() - asked > ASK_S && !document.hidden) {
      asked = now();
      document.body.dispatchEvent(new CustomEvent("live-stale"));
    }
  };

  document.addEventListener("htmx:ws:after:message:incoming", () => {
    taken = now();
    readAge();
  });
  document.addEventListener("htmx:after:swap", readAge);
  document.addEventListener("visibilitychange", tick);
  readAge();
  setInterval(tick, 500);
})();
