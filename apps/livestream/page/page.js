"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const timeline = document.getElementById("timeline");
  const cursor = document.getElementById("cursor");
  const now = document.getElementById("now");
  const video = document.getElementById("video");
  const last = data.seconds.length - 1;
  let second = 0;

  const clock = (s) => {
    const whole = Math.floor(s), two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole % 3600 / 60);
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  };
  const percent = (value) => value === undefined || value === null ? "none" : `${Math.round(100 * value)} %`;
  const text = (each) => {
    if (!each) return `${clock(second)}: not decided.`;
    const what = each.highlight ? `highlight${each.label ? ` (${each.label})` : ""}` : "no highlight";
    const evidence = data.evidence.map(([name, label]) => `${label} ${percent(each.evidence[name])}`).join(", ");
    return `${clock(each.second)}: ${what}, ${percent(each.score)}, decided ${data.places[each.decided]}${each.why ? ` (${each.why})` : ""}. ` +
      `${evidence[0].toUpperCase()}${evidence.slice(1)}.`;
  };

  const show = (to) => {
    if (last < 0) return;
    second = Math.min(Math.max(to, 0), last);
    const x = 1000 * (second + 0.5) / (last + 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const said = text(data.seconds[second]);
    timeline.setAttribute("aria-valuenow", second);
    timeline.setAttribute("aria-valuetext", said);
    if (now.textContent !== said) now.textContent = said;
  };
  const canSeek = () => video.seekable.length > 0 && video.seekable.end(video.seekable.length - 1) > 0;
  const go = (to) => {
    show(to);
    if (!video) return;
    video.currentTime = second;
    document.getElementById("seeking").hidden = canSeek() || video.readyState === 0;
  };
  const highlight = (step) => {
    const starts = data.highlights.map((each) => each.start);
    const found = step > 0 ? starts.find((start) => start > second) : starts.filter((start) => start < second).pop();
    if (found !== undefined) go(found);
  };

  const keys = {
    ArrowRight: () => go(second + 1), ArrowLeft: () => go(second - 1),
    ArrowDown: () => highlight(1), ArrowUp: () => highlight(-1),
    Home: () => go(0), End: () => go(last),
    " ": () => video && (video.paused ? video.play() : video.pause()),
  };
  timeline.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  const pick = (event) => {
    const box = timeline.getBoundingClientRect();
    go(Math.floor((last + 1) * (event.clientX - box.left) / box.width));
  };
  timeline.addEventListener("pointerdown", (event) => {
    timeline.setPointerCapture(event.pointerId);
    pick(event);
  });
  timeline.addEventListener("pointermove", (event) => {
    if (event.buttons) pick(event);
  });
  document.querySelectorAll("[data-second]").forEach((button) => {
    button.addEventListener("click", () => go(Number(button.dataset.second)));
  });
  if (video) {
    video.addEventListener("timeupdate", () => {
      if (!video.paused || canSeek()) show(Math.floor(video.currentTime));
    });
    video.addEventListener("error", () => { video.hidden = true; });
  }
  show(0);
})();
