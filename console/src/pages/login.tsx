// Takes the one-time code of a link, which is in the fragment that no server sees, or a token.

import { useEffect, useState } from "preact/hooks";
import { call, Refusal, session } from "../core/api";
import { correct } from "../core/clock";
import { base, go, path, query } from "../core/router";
import type { SessionView } from "../core/schema";
import { Command, withCode } from "../parts/show";

/** The code of the link that opened this page; used up at once, so that it does not stay in the history. */
let code = location.hash.slice(1);
if (code) history.replaceState(null, "", location.pathname + location.search);

export default function Login() {
  const [told, setTold] = useState<string | null>(null);
  const [token, setToken] = useState("");
  const [known, setKnown] = useState<SessionView | null>(null);
  const [isBusy, setBusy] = useState(Boolean(code));

  const logIn = async (given: { code: string } | { token: string }) => {
    setBusy(true);
    const asked = Date.now();
    try {
      const made = await call("POST /session", {}, given);
      correct(made.now, asked, Date.now());
      session.value = made;
      if (path.value === "login") go(query.value.get("next") ?? base, { replace: true });
    } catch (error) {
      setTold(error instanceof Refusal ? error.message : String(error));
      setBusy(false);
      if ("code" in given) setKnown(await call("GET /session").catch(() => null)); // the first use may have been here
    }
  };
  useEffect(() => {
    document.title = "Log in · Mainspring";
    if (!code) return;
    const once = code;
    code = "";
    void logIn({ code: once });
  }, []);

  return (
    <main class="login">
      <h1>
        <img src="static/icon.svg" alt="" width="32" height="32" /> Mainspring
      </h1>
      {told && (
        <p class="problem" role="alert">
          {withCode(told)}
        </p>
      )}
      {known && (
        <p>
          This browser is logged in as {known.name}, {known.role}.{" "}
          <button type="button" class="link" onClick={() => ((session.value = known), go(base, { replace: true }))}>
            Go on
          </button>
        </p>
      )}
      {isBusy ? (
        <p role="status">Logging in …</p>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void logIn({ token: token.trim() });
          }}
        >
          <p>Make a link on the machine of the server. It works once, for ten minutes:</p>
          <Command>mainspring login</Command>
          <div class="field">
            <label for="token">Or log in with a token</label>
            <input id="token" type="password" autoComplete="off" required value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          </div>
          <button type="submit" class="button main">
            Log in
          </button>
        </form>
      )}
    </main>
  );
}
