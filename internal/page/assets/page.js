// Keeps the page as the cluster is. Without it the page is as of when it was loaded.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const link = document.getElementById("link");
  const told = document.getElementById("told");
  let said = live.querySelector("[data-say]")?.dataset.say;
  let events = null;
  let lost = false;

  const time = () => new Date().toLocaleTimeString();

  // say tells what a screen reader should read out, and only what is new.
  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  // put replaces the sections that differ, and leaves the focus where it was.
  const put = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").body;
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const at = focused && document.activeElement.closest("section").id;
    const old = [...live.children];
    const now = [...fresh.children];
    if (old.length !== now.length || old.some((e, i) => e.id !== now[i].id)) {
      live.replaceChildren(...now);
    } else {
      old.forEach((e, i) => { if (e.outerHTML !== now[i].outerHTML) e.replaceWith(now[i]); });
    }
    if (focused && document.activeElement === document.body) {
      document.querySelector(`#${CSS.escape(at)} a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    const headline = live.querySelector("[data-say]")?.dataset.say;
    if (headline !== said) say(told, said = headline);
  };

  const start = () => {
    if (events) return;
    events = new EventSource(document.body.dataset.events);
    events.onopen = () => { lost = false; say(link, "Live"); };
    events.onmessage = (e) => put(e.data);
    events.onerror = () => { // at each attempt
      if (!lost) say(link, `Not connected since ${time()}: is kubectl flexlvm ui still running?`);
      lost = true;
    };
  };
  const stop = () => { events?.close(); events = null; };

  // A window that nobody sees asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  if (!document.hidden) start();
})();
