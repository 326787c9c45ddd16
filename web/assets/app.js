"use strict";
// What the pages can't do by themselves. Every piece finds its elements by a data attribute, so that the templates say
// what they want and no script stands in them.

// A reply that does not come says so, until one does.
document.addEventListener("htmx:sendError", () => { document.getElementById("offline").hidden = false; });
document.addEventListener("htmx:afterRequest", (e) => {
  if (e.detail.xhr && e.detail.xhr.status > 0) document.getElementById("offline").hidden = true;
});

// [data-insecure]: shown where the browser keeps no session, as the page came in the open.
if (!window.isSecureContext) document.querySelectorAll("[data-insecure]").forEach((e) => { e.hidden = false; });

// The first field that was refused is where to go on.
document.querySelector("main [aria-invalid]")?.focus();

// What somebody opened stays open when the part of the page around it is replaced.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) => !(name === "open" && element.tagName === "DETAILS");

// [data-copy]: copies the text of the element that it names.
document.addEventListener("click", async (e) => {
  const button = e.target.closest("[data-copy]");
  if (!button) return;
  const from = document.getElementById(button.dataset.copy);
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(from.textContent);
    button.textContent = "Copied";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(from);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected: press Ctrl-C";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
});

// form[data-confirm]: asks before it is sent.
document.addEventListener("submit", (e) => {
  const text = e.target.dataset.confirm;
  if (text && !window.confirm(text)) e.preventDefault();
}, true);
