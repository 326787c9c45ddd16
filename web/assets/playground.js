"use strict";
// The playground: one conversation with one model, streamed. All that comes from a model is put in as text.
(() => {
  const form = document.getElementById("playground");
  if (!form) return;
  const el = (id) => document.getElementById(id);
  const talk = el("talk"), state = el("state"), raw = el("raw"), stop = el("stop");
  const maxRaw = 256 * 1024;
  let messages = [], abort = null;

  function make(tag, name, text) {
    const e = document.createElement(tag);
    if (name) e.className = name;
    if (text !== undefined) e.textContent = text;
    return e;
  }
  function turn(who, text) {
    const box = make("article", "turn");
    box.append(make("div", "who", who));
    const body = make("div", "text", text);
    box.append(body);
    talk.append(box);
    return { box, body };
  }
  function fault(box, message) {
    const e = make("div", "notice bad", message);
    e.setAttribute("role", "alert");
    box.append(e);
  }

  // What a request is made of; throws with the field's name.
  function request(prompt) {
    const data = new FormData(form), body = { model: data.get("model"), stream: true, stream_options: { include_usage: true } };
    const system = data.get("system").trim(), tools = data.get("tools").trim();
    if (tools) {
      try { body.tools = JSON.parse(tools); } catch (e) { throw new Error("Tools: not valid JSON: " + e.message); }
    }
    if (data.get("max_tokens")) body.max_tokens = Number(data.get("max_tokens"));
    if (data.get("temperature")) {
      body.temperature = Number(data.get("temperature"));
      if (Number.isNaN(body.temperature)) throw new Error("Temperature: not a number");
    }
    body.messages = [...(system ? [{ role: "system", content: system }] : []), ...messages, { role: "user", content: prompt }];
    return body;
  }

  // The events of a stream, one JSON text at a time (WHATWG event streams). Comments go to note.
  async function* events(body, note) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
        else if (line.startsWith(":")) note(line.slice(1));
      }
    }
  }

  // An answer that grows: text, thought, tool calls, and what is known of its speed.
  function answer(model) {
    const { box, body } = turn(model, "");
    const began = performance.now();
    let first = 0, last = 0, text = "", thought = null, usage = null, chunks = 0;
    const calls = [];
    return {
      box,
      take(chunk) {
        if (chunk.error) throw new Error(chunk.error.message || "the stream reported an error");
        if (chunk.usage) usage = chunk.usage;
        const delta = chunk.choices && chunk.choices[0] && chunk.choices[0].delta;
        if (!delta) return;
        const think = delta.reasoning_content || delta.reasoning;
        if (think || delta.content || delta.refusal || delta.tool_calls) {
          last = performance.now();
          first = first || last;
          chunks++;
        }
        if (think) {
          if (!thought) {
            const details = make("details"); details.open = true;
            thought = make("div", "thought", "");
            details.append(make("summary", "", "Reasoning"), thought);
            box.insertBefore(details, body);
          }
          thought.textContent += think;
        }
        if (delta.content || delta.refusal) { text += delta.content || delta.refusal; body.textContent = text; }
        for (const piece of delta.tool_calls || []) {
          let call = calls[piece.index];
          if (!call) {
            call = calls[piece.index] = { id: "", name: "", arguments: "", view: make("pre") };
            box.append(call.view);
          }
          call.id = piece.id || call.id;
          call.name = (piece.function && piece.function.name) || call.name;
          call.arguments += (piece.function && piece.function.arguments) || "";
          call.view.textContent = "calls " + call.name + "(" + call.arguments + ")";
        }
      },
      end(queued) {
        const parts = [];
        if (first) parts.push("first token after " + (first - began).toFixed(0) + " ms");
        if (queued > 0) parts.push("queued " + queued + " ms");
        const tokens = usage ? usage.completion_tokens : chunks;
        if (first && last > first) parts.push((tokens / ((last - first) / 1000)).toFixed(1) + (usage ? " tokens/s" : " chunks/s"));
        if (usage) parts.push(usage.prompt_tokens + " tokens in, " + usage.completion_tokens + " out");
        box.append(make("div", "facts-line", parts.join(", ")));
        return { text, calls };
      },
    };
  }

  async function send(prompt) {
    let body;
    try { body = request(prompt); } catch (e) { state.textContent = e.message; return; }
    turn("You", prompt);
    form.elements.prompt.value = "";
    raw.textContent = "";
    const model = body.model, got = answer(model);
    abort = new AbortController();
    stop.disabled = false;
    state.textContent = "Waiting for " + model + " …";
    let queued = 0, done = false, failed = false;
    try {
      const reply = await fetch("/admin/playground/chat", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: abort.signal });
      if (reply.redirected) throw new Error("Your session expired, and nothing was sent. Sign in using another tab, then send it again here.");
      queued = Number(reply.headers.get("x-iop-queue-ms") || 0);
      if (!reply.ok) {
        const text = await reply.text();
        raw.textContent = text.slice(0, maxRaw);
        let message = text;
        try { message = JSON.parse(text).error.message; } catch { /* no JSON: the text says it */ }
        throw new Error(reply.status + ": " + message);
      }
      const note = (comment) => {
        const place = /queued position=(\d+)(?: estimate=(\d+)s)?/.exec(comment), after = /dispatched after=([\d.]+)s/.exec(comment);
        if (place) state.textContent = "Queued at position " + place[1] + (place[2] ? ", about " + place[2] + " s" : "") + " …";
        if (after) { queued = Math.round(after[1] * 1000); state.textContent = "Waiting for " + model + " …"; }
      };
      for await (const event of events(reply.body, note)) {
        if (raw.textContent.length < maxRaw) raw.append(event + "\n");
        if (event === "[DONE]") { done = true; break; }
        if (event) got.take(JSON.parse(event));
        state.textContent = "Answering …";
      }
      if (!done) throw new Error("the stream ended early");
    } catch (e) {
      failed = true;
      if (e.name === "AbortError") got.box.append(make("div", "facts-line", "stopped"));
      else fault(got.box, e.message);
    }
    const { text, calls } = got.end(queued);
    if (!failed) {
      messages.push({ role: "user", content: prompt });
      const said = { role: "assistant", content: text };
      if (calls.length) said.tool_calls = calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
      messages.push(said);
      if (calls.length) messages.push(...calls.map((c) => ({ role: "tool", tool_call_id: c.id, content: "(the playground has no tools)" })));
    }
    // What was not answered can be sent again, unless the conversation was ended or something else is typed already.
    if (failed && got.box.isConnected && !form.elements.prompt.value) form.elements.prompt.value = prompt;
    abort = null;
    stop.disabled = true;
    state.textContent = failed ? "" : "Done.";
    form.elements.prompt.focus();
  }

  form.addEventListener("submit", (e) => {
    e.preventDefault();
    const prompt = form.elements.prompt.value.trim();
    if (prompt && !abort) send(prompt);
  });
  form.elements.prompt.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => abort && abort.abort());
  el("clear").addEventListener("click", () => { if (abort) abort.abort(); messages = []; talk.textContent = ""; raw.textContent = ""; state.textContent = ""; });
})();
