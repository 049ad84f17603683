// Exchanges the code in the link for a session, or takes a token. The code is in the fragment, which no server sees.
const state = document.getElementById("state");
const form = document.getElementById("form");

async function logIn(given) {
  const answer = await fetch("api/v1/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.message);
  location.replace(".");
}

async function tryToLogIn(given) {
  state.textContent = "Logging in …";
  try {
    await logIn(given);
  } catch (error) {
    state.textContent = error.message;
    form.hidden = false;
    document.getElementById("token").focus();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  tryToLogIn({ token: document.getElementById("token").value.trim() });
});

const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname); // the code is used up: it need not stay in the history
if (code) {
  tryToLogIn({ code });
} else {
  state.textContent = "Log in with a token.";
  form.hidden = false;
}
