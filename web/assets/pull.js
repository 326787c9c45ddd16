"use strict";
// Pulls of models into an Ollama: form[data-pull=ID] shows each pull's progress in the element that it names. All that
// comes from the provider is put in as text.
(() => {
  function make(tag, name, text) {
    const e = document.createElement(tag);
    if (name) e.className = name;
    if (text !== undefined) e.textContent = text;
    return e;
  }
  const size = (n) => n >= 1 << 30 ? (n / (1 << 30)).toFixed(1) + " GiB" : n >= 1 << 20 ? (n / (1 << 20)).toFixed(1) + " MiB" : (n / 1024).toFixed(0) + " KiB";

  // One pull as it is shown. say is read out by screen readers, and so changes with what goes on, not with each byte.
  function card(host, model, cancel) {
    const box = make("section", "card"), say = make("p", "", "Starting …"), bar = make("progress"), far = make("p", "dim", ""), row = make("div", "row");
    box.setAttribute("aria-label", "Pull of " + model);
    say.setAttribute("role", "status");
    bar.setAttribute("aria-label", "Progress of the pull of " + model);
    const stop = make("button", "danger", "Cancel the pull");
    stop.type = "button";
    stop.addEventListener("click", cancel);
    row.append(stop);
    box.append(make("h3", "", model), say, bar, far, row);
    host.prepend(box);
    return {
      line(progress) {
        if (progress.status && say.textContent !== progress.status) say.textContent = progress.status;
        if (progress.total > 0) {
          const done = Math.min(Math.max(progress.completed || 0, 0), progress.total);
          bar.max = progress.total;
          bar.value = done;
          far.textContent = size(done) + " of " + size(progress.total);
        } else {
          bar.removeAttribute("value");
          far.textContent = "";
        }
      },
      end(text, bad) {
        say.textContent = text;
        say.className = bad ? "notice bad" : "notice good";
        if (bad) say.setAttribute("role", "alert");
        bar.remove();
        far.remove();
        stop.textContent = "Dismiss";
        stop.className = "quiet";
        stop.removeEventListener("click", cancel);
        stop.addEventListener("click", () => box.remove());
      },
    };
  }

  const maxLine = 1 << 20; // characters; real ones have 200

  // The lines of a body, one JSON object each.
  async function* lines(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const got = (rest + value).split("\n");
      rest = got.pop();
      if (rest.length > maxLine) throw new Error("the provider's answer is not pull progress in Ollama's format");
      for (const line of got) if (line.trim()) yield JSON.parse(line);
    }
    if (rest.trim()) yield JSON.parse(rest);
  }

  async function pull(form) {
    const data = new URLSearchParams(new FormData(form)), model = data.get("model").trim(), abort = new AbortController();
    const shown = card(document.getElementById(form.dataset.pull), model, () => abort.abort());
    form.elements.model.value = "";
    let last = "";
    try {
      const reply = await fetch(form.action, { method: "POST", body: data, headers: { "Accept": "application/x-ndjson" }, signal: abort.signal });
      if (reply.redirected) throw new Error("your session expired. Sign in using another tab, then pull again here.");
      if (!reply.ok) {
        const text = await reply.text();
        let message = "status " + reply.status;
        try { message = JSON.parse(text).error.message; } catch { /* no JSON: the status says it */ }
        throw new Error(message);
      }
      for await (const progress of lines(reply.body)) {
        if (progress.error) throw new Error(progress.error);
        last = progress.status;
        shown.line(progress);
      }
      if (last !== "success") throw new Error("the provider's progress ended early; pull it again to continue where it stopped");
      shown.end(model + " was pulled.", false);
      document.body.dispatchEvent(new Event("pulled"));
    } catch (e) {
      if (e.name === "AbortError") shown.end("Pull cancelled. Pull it again to continue where it stopped.", false);
      else {
        shown.end(model + " was not pulled: " + e.message, true);
        if (!form.elements.model.value) form.elements.model.value = model;
      }
    }
  }

  document.addEventListener("submit", (e) => {
    const form = e.target.closest("form[data-pull]");
    if (!form || e.defaultPrevented) return;
    e.preventDefault();
    pull(form);
  });
})();
