// What the console's pages do by themselves: refresh, say when they cannot, open dialogs. Decides nothing.
"use strict";

htmx.config.includeIndicatorStyles = false; // it would write an inline style, which the policy refuses
htmx.config.allowEval = false;
htmx.config.historyCacheSize = 0; // pages must not stay in the browser's storage after log-out

function stale(hidden) {
  for (const note of document.querySelectorAll(".k-stale")) note.hidden = hidden;
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.target.matches("[data-live]")) event.preventDefault();
});
document.addEventListener("htmx:responseError", () => stale(false));
document.addEventListener("htmx:sendError", () => stale(false));
document.addEventListener("htmx:timeout", () => stale(false));

let opened = [];
document.addEventListener("htmx:beforeSwap", (event) => {
  const answered = new URL(event.detail.xhr.responseURL || location.href).pathname;
  if (answered !== event.detail.pathInfo.requestPath.split("?")[0]) {
    event.detail.shouldSwap = false; // we were sent elsewhere, to the log-in page most likely
    location.reload();
    return;
  }
  opened = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
});
document.addEventListener("htmx:afterSettle", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  stale(true);
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens).showModal();
  const closer = event.target.closest("[data-closes]");
  if (closer) closer.closest("dialog").close();
});

window.addEventListener("load", () => {
  // unfold's pages name no main part, and its scrolled parts all have one name: who hears the page needs both
  document.getElementById("main")?.setAttribute("role", "main");
  document.querySelectorAll(".simplebar-content-wrapper").forEach((part, number) => {
    part.setAttribute("aria-label", part.closest("#nav-sidebar-apps") ? "menu, scrollable" : `part ${number + 1}, scrollable`);
  });
});

document.addEventListener("DOMContentLoaded", () => {
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  if (wanted instanceof HTMLDialogElement) wanted.showModal();
  for (const form of document.querySelectorAll("form[data-once]")) {
    form.addEventListener("submit", () => {
      // a second click must not send a second decision; the button's value still goes with the first
      setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
    });
  }
});
