
"use strict";
const $ = id => document.getElementById(id);
const access = { token: remembered(sessionStorage, "token"), again: () => {} };

// ---- asking the server -------------------------------------------------------------------------------------------

function remembered(storage, name, value) {
  try {  // a browser may forbid to keep anything
    if (value !== undefined) storage.setItem("coscap " + name, value);
    return storage.getItem("coscap " + name) || "";
  } catch (error) {
    return value || "";
  }
}

async function reach(address, options = {}) {
  const headers = { ...options.headers };
  if (access.token) headers.Authorization = "Bearer " + access.token;
  let answer;
  try {
    answer = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) { $("token").hidden = false; $("word").focus(); }
  throw new Error(body.error || "The server answered with an error (" + answer.status + ").");
}

async function ask(address, options) {
  return (await reach(address, options)).json();
}

function post(address, content) {
  return ask(address, { method: "POST", body: JSON.stringify(content), headers: { "Content-Type": "application/json" } });
}

function say(text, bad) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", Boolean(bad));
}

$("token").addEventListener("submit", event => {
  event.preventDefault();
  access.token = remembered(sessionStorage, "token", $("word").value);
  $("token").hidden = true;
  access.again();
});
