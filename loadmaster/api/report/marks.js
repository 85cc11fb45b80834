// What a pointer is told as it rests on a mark of a drawing (its <title>), for keys and fingers too: a line below the
// drawing says it, and screen readers read that line. Arrow keys go from mark to mark, up and down from row to row.
(() => {
  "use strict";
  const NEAR_PIXELS = 24; // a finger is no finer
  const HINT = "Tap a mark, or use the arrow keys, to read what it is.";

  function follow(svg, box, said) {
    const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode).filter((mark) => mark !== svg);
    const rows = new Map();
    marks.forEach((mark, n) => {
      const row = Number(mark.dataset.row);
      if (!Number.isNaN(row)) rows.has(row) ? rows.get(row).push(n) : rows.set(row, [n]);
    });
    let at = -1;

    function go(next) {
      if (!(next in marks)) return;
      marks[at]?.classList.remove("at");
      at = next;
      marks[at].classList.add("at");
      said.textContent = `${marks[at].querySelector("title").textContent} (${at + 1} of ${marks.length})`;
    }

    function beside(step) {
      const numbers = [...rows.keys()].sort((a, b) => a - b);
      const row = rows.get(numbers[numbers.indexOf(Number(marks[at].dataset.row)) + step]);
      const middle = (mark) => Number(mark.getAttribute("x")) + Number(mark.getAttribute("width")) / 2;
      const off = (n) => Math.abs(middle(marks[n]) - middle(marks[at]));
      return row === undefined ? at : row.reduce((best, n) => (off(n) < off(best) ? n : best));
    }

    function nearest(x, y) {
      let best = -1, least = NEAR_PIXELS;
      marks.forEach((mark, n) => {
        const { left, right, top, bottom } = mark.getBoundingClientRect();
        const far = Math.hypot(Math.max(left - x, 0, x - right), Math.max(top - y, 0, y - bottom));
        if (far < least) [best, least] = [n, far];
      });
      return best;
    }

    box.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const next = {
        ArrowRight: () => Math.min(at + 1, marks.length - 1),
        ArrowLeft: () => Math.max(at - 1, 0),
        Home: () => 0,
        End: () => marks.length - 1,
        ...(rows.size && { ArrowDown: () => (at < 0 ? 0 : beside(1)), ArrowUp: () => (at < 0 ? 0 : beside(-1)) }),
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      go(next());
      marks[at].scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    svg.addEventListener("click", (event) => {
      const under = marks.indexOf(event.target);
      go(under < 0 ? nearest(event.clientX, event.clientY) : under);
    });
  }

  let told = 0;
  document.querySelectorAll("figure > .scroll").forEach((box, n) => {
    const svg = box.querySelector("svg");
    // Links are followed, and what is brought up to date would lose the line.
    if (!svg.querySelector("title") || svg.querySelector("a") || box.closest("[hx-trigger]")) return;
    const said = document.createElement("p");
    said.className = "said";
    said.id = `said-${n}`;
    said.setAttribute("role", "status");
    box.after(said);
    // One on a page is told at once, the others when they are gone to.
    if (told++) box.addEventListener("focus", () => (said.textContent ||= HINT), { once: true });
    else said.textContent = HINT;
    box.setAttribute("role", "application"); // so that screen readers leave it the arrow keys
    box.setAttribute("aria-describedby", said.id);
    follow(svg, box, said);
  });
})();
