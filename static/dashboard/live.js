// Says how old the figures are, and asks for them when the socket is silent. htmx does the rest.
(() => {
  "use strict";

  const OLD_S = 3; // from here on the age is shown
  const ASK_S = 5; // from here on the page asks by itself, as often

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

  const tick = () => {
    const age = now() - taken;
    live.classList.toggle("old", age > OLD_S);
    const text = age > OLD_S ? inWords(age) : "Live";
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
