
// A proxy may have changed Host: the browser knows the address that it used.
if (location.protocol.startsWith("http")) {
  const origin = location.origin + location.pathname.replace(/\/+$/, "");
  for (const place of document.querySelectorAll("[data-origin]")) place.textContent = origin;
}
