// Who is logged in, and how the cluster does, once a second.
const who = document.getElementById("who");
const list = document.getElementById("stats");
let csrf = null;

async function ask(path, how = {}) {
  const answer = await fetch(`api/v1/${path}`, how);
  if (answer.status === 401) location.replace("login");
  return answer.status === 204 ? null : answer.json();
}

function show(stats) {
  const counts = (given) => Object.entries(given).map(([name, count]) => `${count} ${name}`).join(", ") || "none";
  const rows = {
    "live tasks": counts(stats.live),
    "last hour": counts(stats.last_hour),
    agents: `${stats.agents_total}, ${stats.agents_idle} idle`,
    servers: counts(stats.servers),
  };
  list.replaceChildren(...Object.entries(rows).flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  }));
}

async function refresh() {
  if (!document.hidden) show(await ask("stats"));
  setTimeout(refresh, 1000);
}

document.getElementById("logout").addEventListener("click", async () => {
  await ask("session", { method: "DELETE", headers: { "Mainspring-CSRF": csrf } });
  location.replace("login");
});

ask("session").then((session) => {
  if (!session.name) return;
  csrf = session.csrf;
  who.textContent = `${session.name} · ${session.role} · Mainspring ${session.version}`;
  refresh();
});
