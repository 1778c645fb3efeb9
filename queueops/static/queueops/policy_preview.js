// Shows what the policy on the form would do while it is typed. The server draws; nothing is saved.
"use strict";
{
  const start = () => {
    const place = document.getElementById("policy-preview");
    const form = place && place.closest("form");
    if (!form) return;
    let timer = 0;
    let asked = null;
    const ask = async () => {
      if (asked) asked.abort(); // an answer to what was typed before must not come last
      asked = new AbortController();
      const values = new URLSearchParams(new FormData(form));
      values.delete("csrfmiddlewaretoken");
      try {
        const answer = await fetch(`${place.dataset.url}?${values}`, {
          headers: { "X-Requested-With": "XMLHttpRequest" },
          signal: asked.signal,
        });
        if (answer.ok) place.innerHTML = await answer.text();
        place.classList.toggle("is-stale", !answer.ok);
      } catch (error) {
        if (error.name !== "AbortError") place.classList.add("is-stale");
      }
    };
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(ask, 250);
    });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
}
