// What a page does beside showing: ages go on, changes arrive, squares lead to their nodes.
"use strict";
(() => {
  const root = document.documentElement;
  const main = document.getElementById("main");
  const began = performance.now();
  const born = Number(root.dataset.now);
  const now = () => born + performance.now() - began;

  // As csi-cloud and kubectl write ages.
  function age(ms) {
    const s = Math.max(0, Math.floor(ms / 1000));
    const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
    const two = (whole, unit, rest, part) => whole + unit + (rest ? rest + part : "");
    if (s < 120) return s + "s";
    if (s < 600) return two(m, "m", s % 60, "s");
    if (s < 10800) return m + "m";
    if (s < 28800) return two(h, "h", m % 60, "m");
    if (s < 172800) return h + "h";
    if (s < 691200) return two(d, "d", h % 24, "h");
    if (s < 63072000) return d + "d";
    return two(Math.floor(d / 365), "y", d % 365, "d");
  }
  function showAges() {
    for (const time of document.querySelectorAll("time[data-ms]")) {
      const text = age(now() - Number(time.dataset.ms));
      if (time.textContent !== text) time.textContent = text;
    }
  }

  // Squares have the places of their nodes' names.
  const namesOf = (svg) => svg.dataset.nodes.split(" ");
  function paint(states) {
    for (const svg of document.querySelectorAll("svg[data-nodes]")) {
      namesOf(svg).forEach((name, place) => {
        if (states[name]) svg.children[place].setAttribute("class", states[name]);
      });
    }
  }
  function nodeAt(target) {
    const svg = target.closest && target.closest("svg[data-nodes]");
    if (!svg || target === svg) return null;
    return namesOf(svg)[Array.prototype.indexOf.call(svg.children, target)];
  }
  document.addEventListener("click", (event) => {
    const node = nodeAt(event.target);
    if (node) location.href = "/node/" + encodeURIComponent(node);
  });
  document.addEventListener("mouseover", (event) => {
    const node = nodeAt(event.target);
    const pointed = document.getElementById("pointed");
    if (!node || !pointed) return;
    const state = event.target.getAttribute("class");
    const badge = document.querySelector(`.legend .badge:has(path.${state})`);
    pointed.textContent = node + ": " + badge.textContent;
  });

  // Choosing a group needs no button.
  document.addEventListener("change", (event) => {
    if (event.target.id === "by") event.target.form.submit();
  });

  // Puts new content in place of old, and the focus where it was.
  function replace(element, content) {
    const active = document.activeElement;
    const inside = active && active !== element && element.contains(active);
    const key = inside && (active.id ? "#" + CSS.escape(active.id)
      : active.getAttribute("href") && `a[href="${CSS.escape(active.getAttribute("href"))}"]`);
    if (typeof content === "string") element.innerHTML = content;
    else element.replaceChildren(...content.childNodes);
    const again = key && element.querySelector(key);
    if (again) again.focus({ preventScroll: true });
    showAges();
  }

  // Loads this page anew, at most every few seconds, and not all pages at the same moment.
  let waiting = false, last = 0;
  function renew() {
    if (waiting) return;
    waiting = true;
    const pause = Math.max(0, last + 3000 - performance.now()) + Math.random() * 500;
    setTimeout(async () => {
      waiting = false;
      last = performance.now();
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" } });
        if (answer.redirected && new URL(answer.url).pathname === "/login") location.reload();
        if (!answer.ok) return;
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const content = page.getElementById("main");
        if (content) replace(main, content);
      } catch (error) {
        // csi-cloud is away; the next event comes when it is back.
      }
    }, pause);
  }

  const about = new Set((root.dataset.about || "").split(" ").filter(Boolean));
  const news = document.getElementById("news");
  function changed(change) {
    for (const [id, content] of Object.entries(change.regions)) {
      const region = document.getElementById(id);
      if (region) replace(region, content);
    }
    if (Object.keys(change.squares).length) paint(change.squares);
    const isOld = about.size && change.about.some((name) => name === "*" || about.has(name));
    if (isOld || (change.reload && document.getElementById("map"))) renew();
    if (isOld) news.textContent = "This page has changed.";
    else if (change.news && document.getElementById("map")) news.textContent = change.news;
  }

  const live = document.getElementById("live");
  function tell(state, text) {
    live.className = "live " + state;
    live.textContent = text;
  }
  if (main && live) {
    const source = new EventSource("/events?after=" + encodeURIComponent(root.dataset.revision));
    source.addEventListener("open", () => tell("on", "live"));
    source.addEventListener("error", () => {
      const isOver = source.readyState === EventSource.CLOSED;
      tell("off", isOver ? "not live: load the page anew" : "not live: trying again");
    });
    source.addEventListener("message", (event) => changed(JSON.parse(event.data)));
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }
  showAges();
  setInterval(showAges, 1000);
})();
