"use strict";
(() => {
  const root = document.documentElement;

  // Copying.
  for (const button of document.querySelectorAll("button.copy")) {
    const source = document.getElementById(button.dataset.of);
    button.hidden = false;
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(source);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // The particles along t.
  const source = document.getElementById("frames");
  if (!source) return;
  const frames = JSON.parse(source.textContent);
  const bytes = Uint8Array.from(atob(frames.data), (letter) => letter.charCodeAt(0));
  const levels = new Uint16Array(bytes.buffer);
  const kept = frames.names.length;
  const last = frames.notes.length - 1;
  const [canvas, slider, button, note, follow, across, up] =
    ["stage", "moment", "play", "reading", "follow", "across", "up"].map((id) => document.getElementById(id));
  const context = canvas.getContext("2d");
  const MILLISECONDS = 100;
  let shown = last, playing = 0;

  const values = (frame, coordinate) => {
    const low = frames.low[frame][coordinate];
    const scale = (frames.high[frame][coordinate] - low) / 65535;
    const start = (frame * kept + coordinate) * frames.number;
    return Array.from(levels.subarray(start, start + frames.number), (level) => low + scale * level);
  };

  // All but the outermost particles, with a margin.
  const extent = (frame, coordinate, outside) => {
    const sorted = Float64Array.from(values(frame, coordinate)).sort();
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const low = at(outside), high = at(1 - outside);
    const margin = 0.06 * (high - low) || 0.5;
    return [low - margin, high + margin];
  };
  const limits = (frame, coordinate) => {
    const parts = follow.checked
      ? [extent(frame, coordinate, 0.005)]
      : [extent(0, coordinate, 0.05), extent(last, coordinate, 0.005)];
    return [Math.min(...parts.map((part) => part[0])), Math.max(...parts.map((part) => part[1]))];
  };

  const ticks = ([low, high], most) => {
    const rough = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high && found.length < 20; k++) found.push(k * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const long = digits > 4 || Math.max(Math.abs(low), Math.abs(high)) >= 1e5;
    return found.map((value) => [value, long ? Number(value.toPrecision(3)).toString() : value.toFixed(digits)]);
  };

  const draw = () => {
    const style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    const width = canvas.clientWidth, height = canvas.clientHeight, sharp = devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `12px ${style.fontFamily}`;
    const single = kept === 1;
    const x = Number(across.value), y = single ? 0 : Number(up.value);
    const inner = { left: single ? 12 : 52, right: width - 12, top: 26, bottom: height - 40 };
    const xs = limits(shown, x), ys = single ? [0, 1] : limits(shown, y);
    const toX = (value) => inner.left + (value - xs[0]) / (xs[1] - xs[0]) * (inner.right - inner.left);
    const toY = (value) => inner.bottom - (value - ys[0]) / (ys[1] - ys[0]) * (inner.bottom - inner.top);

    // Axes.
    context.strokeStyle = color("--line");
    context.fillStyle = color("--soft");
    context.lineWidth = 1;
    context.beginPath();
    context.textAlign = "center";
    for (const [value, text] of ticks(xs, Math.max(width / 110, 2))) {
      context.moveTo(toX(value), inner.top);
      context.lineTo(toX(value), inner.bottom);
      context.fillText(text, toX(value), inner.bottom + 16);
    }
    context.textAlign = "right";
    if (!single) for (const [value, text] of ticks(ys, Math.max(height / 80, 2))) {
      context.moveTo(inner.left, toY(value));
      context.lineTo(inner.right, toY(value));
      context.fillText(text, inner.left - 6, toY(value) + 4);
    }
    context.stroke();
    context.fillStyle = color("--ink");
    context.fillText(frames.names[x], inner.right, height - 6);
    context.textAlign = "left";
    if (!single) context.fillText(frames.names[y], 6, 15);

    context.save();
    context.beginPath();
    context.rect(inner.left, inner.top, inner.right - inner.left, inner.bottom - inner.top);
    context.clip();
    if (single) {
      bars(values(last, x), xs, inner, color("--soft"), false);
      bars(values(shown, x), xs, inner, color("--series-2"), true);
    } else {
      dots(values(last, x).map(toX), values(last, y).map(toY), color("--soft"), 0.25, 2);
      dots(values(shown, x).map(toX), values(shown, y).map(toY), color("--series-2"), 0.7, 2.6);
    }
    context.restore();
    frames.marks.forEach((mark, number) => single || cross(toX(mark[x]), toY(mark[y]), number, color, inner));

    slider.value = shown;
    slider.setAttribute("aria-valuetext", frames.notes[shown]);
    note.textContent = frames.notes[shown];
    canvas.dataset.frame = shown;
  };

  const dots = (xs, ys, fill, alpha, radius) => {
    context.fillStyle = fill;
    context.globalAlpha = alpha;
    xs.forEach((x, i) => {
      context.beginPath();
      context.arc(x, ys[i], radius, 0, 2 * Math.PI);
      context.fill();
    });
    context.globalAlpha = 1;
  };

  const cross = (x, y, number, color, inner) => {
    if (x < inner.left || x > inner.right || y < inner.top || y > inner.bottom) return;
    context.textAlign = "left";
    context.fillStyle = color("--ink");
    // First a rim in the colour behind it, or the particles would swallow it.
    for (const [rim, stroke] of [[4, "--card"], [0, "--ink"]]) {
      context.lineWidth = 2 + rim;
      context.strokeStyle = color(stroke);
      context.beginPath();
      context.moveTo(x - 6, y);
      context.lineTo(x + 6, y);
      context.moveTo(x, y - 6);
      context.lineTo(x, y + 6);
      context.stroke();
      if (rim) context.strokeText(number, x + 8, y - 7);
    }
    context.fillText(number, x + 8, y - 7);
  };

  // A histogram, as high as the highest bar of the last moment leaves room for.
  const bars = (numbers, [low, high], inner, fill, filled) => {
    const num = 40, counts = new Array(num).fill(0);
    for (const value of numbers) {
      const bin = Math.floor((value - low) / (high - low) * num);
      if (bin >= 0 && bin < num) counts[bin]++;
    }
    const top = Math.max(...counts), wide = (inner.right - inner.left) / num;
    context.fillStyle = context.strokeStyle = fill;
    context.globalAlpha = filled ? 0.7 : 1;
    counts.forEach((count, bin) => {
      const tall = (inner.bottom - inner.top) * 0.95 * count / top;
      const box = [inner.left + bin * wide, inner.bottom - tall, wide - 1, tall];
      if (filled) context.fillRect(...box); else if (count) context.strokeRect(...box);
    });
    context.globalAlpha = 1;
  };

  const show = (frame) => {
    shown = Math.min(Math.max(frame, 0), last);
    draw();
  };
  const stop = () => {
    clearInterval(playing);
    playing = 0;
    button.textContent = "Play";
  };
  const play = () => {
    if (shown === last) show(0);
    button.textContent = "Pause";
    playing = setInterval(() => {
      show(shown + 1);
      if (shown === last) stop();
    }, MILLISECONDS);
  };

  button.addEventListener("click", () => (playing ? stop() : play()));
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  for (const control of [follow, across, up]) control.addEventListener("input", draw);
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Paper is white, and shows where the particles ended.
  addEventListener("beforeprint", () => { stop(); root.classList.add("printing"); show(last); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); draw(); });
  draw();
})();
