"use strict";
// The chat page. All text from a model goes in through textContent: nothing of it is ever markup.

const $ = (id) => document.getElementById(id);
const conversation = [];
let running = null; // the AbortController of the answer under way
let key = sessionStorage.getItem("key") || "";

function headers() {
  return key ? { "Content-Type": "application/json", Authorization: `Bearer ${key}` }
             : { "Content-Type": "application/json" };
}

async function call(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers() });
  if (response.status === 401) $("key-form").hidden = false;
  if (!response.ok) {
    let message = `${response.status} ${response.statusText}`;
    try { message = (await response.json()).error.message; } catch { /* no JSON: the status says it */ }
    throw new Error(message);
  }
  return response;
}

async function refresh() {
  const health = $("health");
  try {
    const response = await fetch("health");
    const said = await response.json();
    health.textContent = response.ok ? "ready" : (said.status || (said.error && said.error.message) || "not ready");
    health.className = response.ok ? "ok" : "bad";
  } catch {
    health.textContent = "no answer from the server";
    health.className = "bad";
    return;
  }
  try {
    const models = (await (await call("v1/models")).json()).data;
    const chosen = $("model").value;
    $("model").replaceChildren(...models.map((m) => {
      const loaded = m.loaded ? " (loaded)" : "";
      return new Option(m.id + loaded, m.id, false, m.id === chosen);
    }));
  } catch { /* without a key there is no list; the form asks for one */ }
}

/** Fill `box` with text whose ``` fences become code blocks. */
function show(box, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  box.replaceChildren(...parts.map((part, i) => {
    if (i % 2 === 0) return document.createTextNode(part);
    const pre = document.createElement("pre"), code = document.createElement("code");
    code.textContent = part;
    pre.append(code);
    return pre;
  }));
}

function turn(kind, text) {
  const box = document.createElement("div");
  box.className = `turn ${kind}`;
  show(box, text);
  $("talk").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

/** The `data:` payloads of an event stream. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

async function answer() {
  const box = turn("assistant", "");
  const thoughts = document.createElement("details"), body = document.createElement("div");
  thoughts.append(Object.assign(document.createElement("summary"), { textContent: "reasoning" }));
  const thought = thoughts.appendChild(document.createElement("div"));
  box.append(body);
  let text = "", reasoning = "", drawn = 0;
  const draw = () => {
    drawn = 0;
    if (reasoning && !thoughts.parentNode) box.prepend(thoughts);
    thought.textContent = reasoning;
    show(body, text);
    const talk = $("talk");
    if (talk.scrollHeight - talk.scrollTop - talk.clientHeight < 120) talk.scrollTop = talk.scrollHeight;
  };
  running = new AbortController();
  $("stop").disabled = false;
  $("send").disabled = true;
  $("speed").textContent = "";
  try {
    const response = await call("v1/chat/completions", {
      method: "POST",
      signal: running.signal,
      body: JSON.stringify({
        model: $("model").value || undefined, messages: conversation, stream: true,
        stream_options: { include_usage: true },
      }),
    });
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices[0] && chunk.choices[0].delta;
      if (delta) { text += delta.content || ""; reasoning += delta.reasoning_content || ""; }
      if (chunk.timings) {
        const t = chunk.timings;
        $("speed").textContent = `${t.predicted_n} tokens, ${t.predicted_per_second.toFixed(1)} a second`;
      }
      drawn = drawn || requestAnimationFrame(draw); // once a frame, however fast they come
    }
  } catch (error) {
    if (error.name !== "AbortError") turn("error", error.message);
  } finally {
    draw();
    running = null;
    $("stop").disabled = true;
    $("send").disabled = false;
    if (text) conversation.push({ role: "assistant", content: text });
    else { box.remove(); conversation.pop(); }
    refresh();
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  for (const hint of document.querySelectorAll(".hint")) hint.remove();
  conversation.push({ role: "user", content: text });
  turn("user", text);
  answer();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running && running.abort());
$("fresh").addEventListener("click", () => {
  if (running) running.abort();
  conversation.length = 0;
  $("talk").replaceChildren();
  $("text").focus();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
  $("key-form").hidden = true;
  refresh();
});
$("base").textContent = new URL("v1", location.href).href;
refresh();
setInterval(() => { if (!document.hidden && !running) refresh(); }, 5000);
