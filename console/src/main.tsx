// The console: who is logged in, which page is at this address, and the frame around it.

import { render } from "preact";
import type { ComponentChildren } from "preact";
import { useErrorBoundary, useEffect, useState } from "preact/hooks";
import { AGAIN, call, ownFault, Refusal, session } from "./core/api";
import { correct, startClock } from "./core/clock";
import { startKeys } from "./core/keys";
import { startLive } from "./core/live";
import { startPrefs } from "./core/prefs";
import { match, path, startRouter } from "./core/router";
import type { Names } from "./core/router";
import Login from "./pages/login";
import { Empty, Loading, Page, Problem } from "./parts/page";
import { Shell } from "./parts/shell";
import { load, ROUTES } from "./routes";
import type { Page as Route, PageOf } from "./routes";

function found(at: string): { page: Route; names: Names; pattern: string } | null {
  for (const [pattern, page] of ROUTES) {
    const names = match(pattern, at);
    if (names) return { page, names, pattern };
  }
  return null;
}

/** A fault of the console itself: said plainly, and gone with the next page. */
function Caught({ at, children }: { at: string; children: ComponentChildren }) {
  const [fault, reset] = useErrorBoundary((error: unknown) => console.error(error));
  useEffect(() => reset, [at]);
  if (!fault) return <>{children}</>;
  return <Problem refusal={ownFault(`This page has a fault: ${String(fault)}`)} retry={reset} />;
}

function Content() {
  const at = path.value;
  const route = found(at);
  const [loaded, setLoaded] = useState<{ pattern: string; page: PageOf } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    if (!route) return;
    let isCurrent = true;
    setFault(null);
    load(route.page).then(
      (page) => isCurrent && setLoaded({ pattern: route.pattern, page }),
      () => isCurrent && setFault("This page could not be loaded. Was the server upgraded? Reload the console."),
    );
    return () => void (isCurrent = false);
  }, [route?.pattern]);
  if (!route)
    return (
      <Page title="Not found">
        <Empty title="There is no such page.">
          <a href=".">Go to the overview</a>
        </Empty>
      </Page>
    );
  if (fault) return <Problem refusal={ownFault(fault)} retry={() => location.reload()} />;
  if (loaded?.pattern !== route.pattern) return <Loading />;
  const Current = loaded.page;
  return (
    <Caught at={at}>
      <Current key={JSON.stringify(route.names)} names={route.names} />
    </Caught>
  );
}

function Console() {
  const [isKnown, setKnown] = useState(false);
  const [fault, setFault] = useState<Refusal | null>(null);
  const ask = async () => {
    const asked = Date.now();
    try {
      const who = await call("GET /session");
      correct(who.now, asked, Date.now());
      session.value = who;
      setFault(null);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      setFault(error.status === 401 ? null : error);
      if (error.isPassing) setTimeout(() => session.value || void ask(), AGAIN);
    }
    setKnown(true);
  };
  useEffect(() => {
    if (path.value === "login") setKnown(true);
    else void ask();
  }, []);
  if (fault)
    return (
      <main class="login">
        <h1>Mainspring</h1>
        <Problem refusal={fault} retry={() => void ask()} />
        {fault.isPassing && <p class="quiet">The console opens by itself once it answers.</p>}
      </main>
    );
  if (!isKnown) return <Loading />;
  if (!session.value) return <Login />;
  return (
    <Shell>
      <Content />
    </Shell>
  );
}

startPrefs();
startRouter();
startClock();
startKeys();
startLive();
const root = document.getElementById("app");
if (root) render(<Console />, root);
