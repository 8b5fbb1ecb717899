"use strict";
(() => {
  const banner = document.getElementById("connection");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Times: how long ago, beside the time itself.
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function tellAges() {
    const now = Date.now() / 1000;
    for (const place of document.querySelectorAll("[data-ago]")) {
      const seconds = now - Number(place.dataset.ago), past = Math.abs(seconds);
      const [unit, size] = units.find(([, one]) => past >= one) || units[3];
      const text = `${Math.floor(past / size)} ${unit}`;
      const words = seconds >= 0 ? `(${text} ago)` : `(in ${text})`;
      if (place.textContent !== words) place.textContent = words;
    }
  }

  const utc = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 19);  // as the times in the text

  // Charts: data as JSON in an attribute, drawn again when it is another one.
  const drawn = new WeakMap();
  function draw(place) {
    const text = place.dataset.chart, before = drawn.get(place);
    if (before && before.text === text && before.width === place.clientWidth) return;
    const data = JSON.parse(text);
    const values = [data.x, ...data.series.map((one) => one.values)];
    if (before && before.width === place.clientWidth && before.series === data.series.length) {
      before.data = data;
      before.plot.setData(values);
      before.text = text;
      return;
    }
    if (before) before.plot.destroy();
    const state = { text, data, width: place.clientWidth, series: data.series.length };
    const axis = { stroke: style("dim"), grid: { stroke: style("line"), width: 1 }, ticks: { stroke: style("line") } };
    const options = {
      width: Math.max(place.clientWidth, 200), height: 160, cursor: { drag: { x: false, y: false } },
      axes: [{ ...axis, space: 60, values: (_, times) => times.map(utc) }, { ...axis, size: 55 }],
      scales: { y: { range: (_, low, high) => {
        const tops = [high || 0, ...(state.data.limits || []).map((one) => one.y)];
        return [0, Math.max(...tops, 1e-9) * 1.08];
      } } },
      series: [{ label: "UTC", value: (_, at) => at == null ? "–" : utc(at) }, ...data.series.map((one) => ({
        label: one.label, stroke: style(one.color || "busy"), width: 2, points: { show: values[0].length < 30 },
      }))],
      hooks: { draw: [(plot) => lines(plot, state.data)] },
    };
    state.plot = new uPlot(options, values, place);
    drawn.set(place, state);
  }
  function lines(plot, data) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    const rule = (x0, y0, x1, y1, color, label, x, y) => {
      ctx.strokeStyle = ctx.fillStyle = style(color);
      ctx.beginPath(); ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); ctx.stroke();
      ctx.fillText(label, x, y);
    };
    for (const one of data.limits || []) {
      const y = plot.valToPos(one.y, "y", true);
      rule(bbox.left, y, bbox.left + bbox.width, y, one.color, one.label, bbox.left + 4 * ratio, y - 3 * ratio);
    }
    for (const one of data.marks || []) {
      const x = plot.valToPos(one.x, "x", true);
      rule(x, bbox.top, x, bbox.top + bbox.height, "dim", one.label, x + 3 * ratio, bbox.top + 11 * ratio);
    }
    ctx.restore();
  }
  function refresh() {
    tellAges();
    for (const place of document.querySelectorAll("[data-chart]")) draw(place);
  }

  // The connection of the live parts. A session that has ended leads to the login.
  document.addEventListener("htmx:sse:error", (event) => {
    if (event.detail.status === 401 || event.detail.status === 403) location.reload();
    banner.hidden = false;
  });
  document.addEventListener("htmx:sse:after:connection", () => { banner.hidden = true; });
  document.addEventListener("htmx:sse:after:message", () => { banner.hidden = true; refresh(); trim(); });
  document.addEventListener("htmx:after:swap", refresh);

  // A live tail keeps its newest rows.
  function trim() {
    for (const list of document.querySelectorAll("[data-keep]")) {
      while (list.children.length > Number(list.dataset.keep)) list.lastElementChild.remove();
    }
  }

  // A link from elsewhere comes without the cookie; from this page, the same address comes with it.
  const login = document.querySelector("form[data-came-from]");
  if (login && !document.querySelector("[role=alert]")) {
    const address = login.dataset.cameFrom;
    fetch("/dashboard/login", { redirect: "manual" }).then((answer) => {
      if (answer.type === "opaqueredirect") location.replace(address);
    }).catch(() => {});
  }
  const link = document.getElementById("link");
  if (link) { link.value = location.origin + link.dataset.address; link.select(); }

  addEventListener("resize", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
  setInterval(tellAges, 5000);
  refresh();
})();
