// What pages do in the browser beside htmx: times in the viewer's zone, ticked rows, dialogs, toasts, keys, hints.
// Every page works without it; nothing here decides anything.
(() => {
  "use strict";

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  document.documentElement.classList.add("js");

  // --- Morphing keeps what a person has opened, and which page this is --------------------------------

  htmx.registerExtension("keep", {
    htmx_before_morph_attr: (element, { attrName }) => {
      if (attrName === "open" && element.matches("details, dialog")) return false;
      return !(attrName === "aria-current" && element.closest("#live-navigation"));
    },
  });

  // --- Times: relative to Redis's clock, in the viewer's zone; UTC stands in the title ----------------

  const started = performance.now();
  let serverMs = Date.now();
  let serverAt = started;
  const nowMs = () => serverMs + performance.now() - serverAt;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const minute = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });
  const year = new Intl.DateTimeFormat([], { day: "numeric", month: "short", year: "numeric" });

  const span = (seconds) => {
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (whole >= size) return `${Math.floor(whole / size)} ${unit}`;
    }
    return `${whole} s`;
  };

  const dated = (at) => {
    const now = new Date(nowMs());
    if (at.toDateString() === now.toDateString()) return clock.format(at);
    return `${(at.getFullYear() === now.getFullYear() ? day : year).format(at)}, ${clock.format(at)}`;
  };

  const writeTime = (element) => {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const mode = element.dataset.time;
    let text = dated(at);
    if (mode === "minute") text = minute.format(at);
    if (mode === "ago") {
      const seconds = (nowMs() - at.getTime()) / 1000;
      text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
    }
    if (element.textContent !== text) element.textContent = text;
  };

  const readClock = () => {
    const told = one("[data-now-ms]");
    const ms = told ? Number(told.dataset.nowMs) : 0;
    if (ms > 0 && told.dataset.nowMs !== readClock.last) {
      readClock.last = told.dataset.nowMs;
      serverMs = ms;
      serverAt = performance.now();
    }
  };

  // --- What is wrong: in the title and the icon of the tab ---------------------------------------------

  const markTab = () => {
    const banner = document.getElementById("live-banner");
    if (!banner) return;
    const { bad, problems } = banner.dataset;
    const plain = document.title.replace(/^\(\d+\) /, "");
    const title = Number(problems) ? `(${problems}) ${plain}` : plain;
    if (document.title !== title) document.title = title;
    const icon = document.getElementById("icon");
    const colour = Number(bad) ? "#d92d20" : Number(problems) ? "#b8860b" : "";
    if (!icon || icon.dataset.colour === colour) return;
    icon.dataset.colour = colour;
    const dot = colour ? `<circle cx="15" cy="15" r="4.6" fill="${colour}" stroke="#fff" stroke-width="1.4"/>` : "";
    const body = decodeURIComponent(icon.href.slice(icon.href.indexOf(",") + 1));
    icon.href = "data:image/svg+xml," + encodeURIComponent(body.replace(/(<\/g>)<circle[^>]*stroke="#fff"[^>]*>/, "$1").replace("</svg>", `${dot}</svg>`));
  };

  // --- Ticked rows: by id, whatever place a row has ----------------------------------------------------

  const ticked = new Set();
  let matching = false; // "all that match", not only what is ticked
  const boxes = () => all('#job-list input[name="id"]');

  const showTicks = () => {
    const shown = boxes();
    const here = new Set(shown.map((box) => box.value));
    for (const id of [...ticked]) if (!here.has(id)) ticked.delete(id);
    for (const box of shown) box.checked = matching || ticked.has(box.value);
    const page = document.getElementById("tick-page");
    if (page) {
      page.checked = shown.length > 0 && shown.every((box) => box.checked);
      page.indeterminate = !page.checked && shown.some((box) => box.checked);
    }
    const bulk = document.getElementById("bulk");
    if (!bulk) return;
    bulk.classList.toggle("on", matching || ticked.size > 0);
    const link = document.getElementById("select-matching");
    const words = one(".bulk-count", bulk);
    const text = matching && link ? `All ${link.textContent.replace(/^Select all /, "").replace(/ that match$/, "")} that match` : `${ticked.size} selected`;
    if (words.textContent !== text) words.textContent = text;
    if (link) link.hidden = matching;
  };

  const untick = () => {
    ticked.clear();
    matching = false;
    showTicks();
  };

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "tick-page") {
      matching = false;
      for (const each of boxes()) box.checked ? ticked.add(each.value) : ticked.delete(each.value);
      showTicks();
    } else if (box.matches('#job-list input[name="id"]')) {
      if (matching) for (const each of boxes()) ticked.add(each.value);
      matching = false;
      box.checked ? ticked.add(box.value) : ticked.delete(box.value);
      showTicks();
    } else if (box.matches("#filters select")) {
      box.form.requestSubmit();
    }
  });

  // For all that match a button asks for the operation's form instead of acting on the ticked rows.
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#bulk [data-verb]");
    const link = document.getElementById("select-matching");
    if (button && matching && link) {
      event.preventDefault();
      event.stopImmediatePropagation();
      htmx.ajax("GET", `${link.href}&verb=${button.dataset.verb}`, { target: "#dialog", swap: "innerHTML" });
    }
  }, true);

  // --- Hints: a list fetches its own page, at most once a second, and not while nobody can see it -------

  const EVERY_MS = 1000;
  const fetched = new WeakMap();
  const waiting = new WeakMap();
  let fresh = false; // the next fetch is not bound to the rows that are shown

  const refresh = (element) => {
    if (waiting.has(element) || !element.isConnected) return;
    const ago = performance.now() - (fetched.get(element) ?? -Infinity);
    waiting.set(element, setTimeout(() => {
      waiting.delete(element);
      if (document.hidden) {
        stale.add(element);
        return;
      }
      fetched.set(element, performance.now());
      element.dispatchEvent(new CustomEvent("list-hint"));
    }, Math.max(0, EVERY_MS - ago)));
  };

  const stale = new Set();
  const concerned = (queues) => all("[data-live-queue]").filter((each) => each.dataset.liveQueue === "*" || queues.includes(each.dataset.liveQueue));
  const refreshAll = () => all('[hx-trigger~="list-hint"]').forEach(refresh);

  document.addEventListener("htmx:ws:after:message:incoming", (event) => {
    const data = event.detail?.message?.data;
    if (typeof data !== "string" || !data.startsWith('{"hints"')) return;
    const { hints, digests } = JSON.parse(data);
    concerned(hints).forEach(refresh);
    // What happened between the page and its socket nobody was told: compare.
    const missed = (each) => digests?.[each.dataset.liveQueue] && digests[each.dataset.liveQueue] !== each.dataset.digest;
    all("[data-digest]").filter(missed).forEach(refresh);
  });
  document.body.addEventListener("live-stale", refreshAll); // dispatched on the body, and does not bubble
  let opened = 0;
  document.addEventListener("htmx:ws:after:connection", () => {
    if (opened++) document.body.dispatchEvent(new CustomEvent("live-stale")); // it was away for a while
  });
  document.addEventListener("page-changed", () => all('[hx-trigger~="list-hint"]').forEach((each) => {
    fetched.delete(each);
    refresh(each);
  }));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    for (const each of stale) refresh(each);
    stale.clear();
  });
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement.id !== "job-list" || !(ctx.request.body instanceof FormData)) return;
    const ids = all("#job-list [data-job]").map((row) => row.dataset.job);
    if (!fresh && ids.length) ctx.request.body.set("shown", ids.join(" "));
    fresh = false;
  });
  document.addEventListener("click", (event) => {
    const pill = event.target.closest?.("[data-show-new]");
    const list = document.getElementById("job-list");
    if (!pill || !list) return;
    event.preventDefault();
    fresh = true;
    list.dispatchEvent(new CustomEvent("list-hint"));
  });
  const polled = new WeakMap();
  setInterval(() => {
    readClock();
    if (document.hidden) return;
    all('time[data-time="ago"]').forEach(writeTime);
    for (const each of all("[data-poll-s]")) {
      const last = polled.get(each) ?? performance.now();
      polled.set(each, last);
      if (performance.now() - last >= Number(each.dataset.pollS) * 1000 && !one("dialog[open]")) {
        polled.set(each, performance.now());
        refresh(each);
      }
    }
  }, 500);

  // --- Dialogs and toasts ------------------------------------------------------------------------------

  const dialog = document.getElementById("dialog");
  const fillZone = (root) => {
    for (const each of all("[data-zone]", root)) each.value = zone;
    for (const each of all("[data-zone-name]", root)) each.textContent = `(${zone})`;
  };
  const closeDialog = () => {
    if (!dialog?.open) return;
    dialog.close();
  };
  dialog?.addEventListener("close", () => dialog.replaceChildren());
  document.addEventListener("close-dialog", closeDialog);
  document.addEventListener("click", (event) => {
    const target = event.target;
    const closer = target.closest?.("[data-close-dialog]");
    if (closer && closer.closest("dialog")) {
      event.preventDefault();
      closer.closest("dialog").close();
    } else if (target.matches?.("dialog[open]") && event.detail) {
      target.close(); // a press on the backdrop
    } else if (target.closest?.("[data-close-toast]")) {
      target.closest(".toast").remove();
    } else if (target.closest?.("[data-copy]")) {
      const button = target.closest("[data-copy]");
      navigator.clipboard?.writeText(one(button.dataset.copy).textContent).then(() => toast("Copied"), () => toast("The browser does not let this page copy", true));
    }
  });

  const KEPT_MS = 12_000; // long enough to undo what was pressed by mistake
  const tidyToasts = () => {
    for (const each of all("#toasts .toast:not([data-timed])")) {
      each.dataset.timed = "";
      const gone = () => (each.matches(":hover, :focus-within") ? setTimeout(gone, 2000) : each.remove());
      setTimeout(gone, KEPT_MS);
    }
    all("#toasts .toast").slice(0, -4).forEach((each) => each.remove());
  };
  const toast = (text, bad = false) => {
    const made = document.createElement("div");
    made.className = bad ? "toast bad" : "toast";
    made.setAttribute("role", "status");
    made.append(Object.assign(document.createElement("span"), { textContent: text }));
    document.getElementById("toasts")?.append(made);
    tidyToasts();
  };
  const byPerson = (ctx) => ["click", "submit"].includes(ctx?.sourceEvent?.type);
  document.addEventListener("htmx:error", (event) => {
    if (byPerson(event.detail?.ctx)) toast("The server could not be reached: nothing was changed. Try again.", true);
  });
  document.addEventListener("htmx:response:error", (event) => {
    const { ctx } = event.detail;
    if (byPerson(ctx) && !ctx.text?.includes("hx-partial") && ![409, 422].includes(ctx.response.status)) {
      toast(`The server refused this (${ctx.response.status}): nothing was changed.`, true);
    }
  });

  // --- Keys --------------------------------------------------------------------------------------------

  let row = ""; // id of the row that the keys are on
  let goes = 0;
  const rows = () => all("main table tbody tr[id]");
  const showRow = () => {
    for (const each of rows()) each.classList.toggle("here", each.id === row);
  };
  const step = (by) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((each) => each.id === row);
    const next = list[Math.min(list.length - 1, Math.max(0, at + by))];
    row = next.id;
    showRow();
    next.scrollIntoView({ block: "nearest" });
  };
  const current = () => document.getElementById(row);
  const press = (...verbs) => {
    if (!document.getElementById("bulk")) {
      verbs.map((verb) => one(`.actions [data-verb="${verb}"]`)).find(Boolean)?.click();
      return;
    }
    const box = current() && one('input[name="id"]', current());
    if (!ticked.size && !matching && box) {
      ticked.add(box.value);
      showTicks();
    }
    if (ticked.size || matching) verbs.map((verb) => one(`#bulk [data-verb="${verb}"]`)).find(Boolean)?.click();
  };
  const KEYS = {
    "?": () => document.getElementById("keys")?.showModal(),
    "/": () => document.getElementById("search")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    x: () => {
      const box = current() && one('input[name="id"]', current());
      if (!box) return;
      box.checked = !box.checked;
      box.dispatchEvent(new Event("change", { bubbles: true }));
    },
    r: () => press("requeue", "restore", "run_now"),
    d: () => press("discard", "cancel"),
    e: () => one('.actions [data-verb="edit"]')?.click(),
    g: () => (goes = performance.now()),
    Enter: () => current() && one("a[href]", current())?.click(),
    Escape: untick,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.matches("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape" && event.target.id === "search") event.target.blur();
      if (!event.target.matches('input[type="checkbox"]')) return;
    }
    if (one("dialog[open]")) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    if (goes && performance.now() - goes < 1500 && event.key !== "g") {
      goes = 0;
      const link = one(`.side [data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const act = Object.hasOwn(KEYS, event.key) && KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("#select-matching");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    matching = true;
    showTicks();
  });

  // --- Charts: drawn by the server; under a pointer by uPlot, which is loaded for the first one ---------

  let uplot = null;
  const load = () => uplot ??= new Promise((resolve, reject) => {
    const { uplotJs, uplotCss } = document.body.dataset;
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: uplotCss });
    const script = Object.assign(document.createElement("script"), { src: uplotJs, onload: () => resolve(window.uPlot), onerror: reject });
    document.head.append(style, script);
  });
  const COLOURS = ["delayed", "ready", "pending", "dead", "done", "accent", "discarded"];
  const draw = async (figure) => {
    if (figure.hasAttribute("hx-morph-skip")) return;
    figure.setAttribute("hx-morph-skip", ""); // while it is looked at, updates leave it alone
    const uPlot = await load();
    if (!figure.isConnected) return;
    const style = getComputedStyle(document.documentElement);
    const { times, series } = JSON.parse(figure.dataset.chart);
    const stacked = series.map((_, i) => times.map((_, t) => series.slice(0, i + 1).reduce((sum, each) => sum + each.counts[t], 0)));
    const colour = (i) => style.getPropertyValue(`--${COLOURS[i % COLOURS.length]}`).trim();
    const text = style.getPropertyValue("--muted").trim();
    const line = style.getPropertyValue("--line").trim();
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const options = {
      width: figure.clientWidth - 32,
      height: 220,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      axes: [axis, { ...axis, size: 56 }],
      series: [{ label: "at" }, ...series.map((each, i) => ({
        label: each.name,
        stroke: colour(i),
        fill: colour(i),
        paths: uPlot.paths.bars({ size: [0.9] }),
        points: { show: false },
        value: (_, value, __, t) => (t == null ? "" : each.counts[t].toLocaleString()),
      })).reverse()],
    };
    figure.replaceChildren();
    new uPlot(options, [times, ...stacked.slice().reverse()], figure);
  };
  for (const kind of ["pointerenter", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const figure = event.target.closest?.("figure[data-chart]");
      if (figure) draw(figure).catch(() => figure.removeAttribute("hx-morph-skip"));
    }, true);
  }
  document.addEventListener("pointerleave", (event) => {
    if (event.target.matches?.("figure[data-chart]")) event.target.removeAttribute("hx-morph-skip");
  }, true);

  // --- After everything that changes the page -----------------------------------------------------------

  const settle = () => {
    readClock();
    all("time[data-time]").forEach(writeTime);
    showTicks();
    showRow();
    markTab();
    tidyToasts();
    if (dialog?.childElementCount && !dialog.open) {
      fillZone(dialog);
      dialog.showModal();
    } else if (dialog?.open) {
      fillZone(dialog);
    }
  };
  document.addEventListener("htmx:after:swap", settle);
  document.addEventListener("htmx:finally:swap", settle);
  document.addEventListener("htmx:ws:after:message:incoming", () => queueMicrotask(settle));
  fillZone(document);
  settle();
  one(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // a phone's menu scrolls
})();
