// Counts down to the deadline of a request and offers nothing after it. The database's clock decides, not this one.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const shown of document.querySelectorAll("[data-seconds-left]")) {
    const end = performance.now() + Number(shown.dataset.secondsLeft) * 1000;
    const timer = setInterval(() => {
      const left = Math.ceil((end - performance.now()) / 1000);
      if (left > 0) {
        shown.textContent = told(left);
        return;
      }
      clearInterval(timer);
      shown.textContent = "no time";
      for (const button of document.querySelectorAll("form[data-once] button[name=verdict]")) button.disabled = true;
      for (const link of document.querySelectorAll("a[data-while-open]")) link.remove();
    }, 1000);
  }
});

function told(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  return parts.slice(first, first + 2)
    .map(([size, name], place) => [Math.floor((place ? seconds % parts[first][0] : seconds) / size), name])
    .filter(([count]) => count)
    .map(([count, name]) => `${count} ${name}`)
    .join(" ");
}
