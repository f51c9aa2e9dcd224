// The console: navigation, session, and the page that the address names.
import type { JSX } from "preact";
import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Overview, Refusal, Session, get, send, setCsrf } from "./api";
import { Params, address, useAddress, useLoad } from "./hooks";
import { Admin } from "./pages/admin";
import { Compare } from "./pages/compare";
import { Deltas } from "./pages/deltas";
import { MapPage } from "./pages/map";
import { OverviewPage } from "./pages/overview";
import { SignIn } from "./pages/sign_in";
import { Tables } from "./pages/tables";
import { Traffic } from "./pages/traffic";
import { Try } from "./pages/try";
import { NoModel, Status, Wrong } from "./parts";
import "uplot/dist/uPlot.min.css";
import "./style.css";

const PAGES: [string, string][] = [
  ["", "Overview"],
  ["tables", "Tables"],
  ["map", "Map"],
  ["try", "Try"],
  ["traffic", "Traffic"],
  ["compare", "Compare"],
  ["deltas", "Deltas"],
];
// Pages that show one model, or each of them.
const OF_MODELS = ["tables", "map", "try", "compare", "deltas"];
const ADMIN_PAGES: [string, string][] = [
  ["", "Overview"],
  ["deltas", "Deltas"],
  ["admin", "Admin"],
];

async function readSession(signal: AbortSignal): Promise<Session> {
  const session = await get<Session>("/console/session", signal);
  setCsrf(session.csrf);
  return session;
}

function Shown({ session, overview }: { session: Session; overview: Overview }): JSX.Element {
  const { page, params } = useAddress();
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  const pages = session.is_admin ? ADMIN_PAGES : PAGES;
  const models = overview.models;
  const title = pages.find(([name]) => name === page)?.[1];
  // The chosen model stays chosen on the next page.
  const kept: Params = models.some(({ name }) => name === params["model"]) ? { model: params["model"] ?? "" } : {};
  useEffect(() => {
    document.title = `${title ?? "Console"} – Embedding server`;
    // A screen reader reads the new page's heading; the first page is read from its top.
    if (!isFirst.current) main.current?.querySelector("h1")?.focus();
    isFirst.current = false;
  }, [page]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        main.current?.querySelector("h1")?.focus();
      }}>
        Skip to the page
      </a>
      <header class="top">
        <strong>Embedding server</strong>
        <nav aria-label="Pages">
          {pages.map(([name, title]) => (
            <a key={name} href={address(name, kept)} aria-current={name === page ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        {session.caller ? (
          <span class="caller">
            {session.caller}{" "}
            <button
              type="button"
              onClick={() => {
                void send("DELETE", "/console/session").then(() => location.reload());
              }}
            >
              Sign out
            </button>
          </span>
        ) : null}
      </header>
      <main id="main" ref={main}>
        {pages.every(([name]) => name !== page) ? <Wrong what={page === "admin" ? "the page Admin (labels, roll-back) is on the port of --admin_port." : `there is no page “${page}” here.`} /> : null}
        {!models.length && title && OF_MODELS.includes(page) ? (
          <>
            <h1 tabIndex={-1}>{title}</h1>
            <NoModel />
          </>
        ) : page === "deltas" ? (
          <Deltas overview={overview} session={session} />
        ) : session.is_admin && page === "admin" ? (
          <Admin models={models} session={session} params={params} />
        ) : session.is_admin ? (
          <OverviewPage overview={overview} hasLinks={false} />
        ) : page === "tables" ? (
          <Tables overview={overview} params={params} />
        ) : page === "map" ? (
          <MapPage overview={overview} params={params} />
        ) : page === "try" ? (
          <Try overview={overview} params={params} session={session} />
        ) : page === "traffic" ? (
          <Traffic overview={overview} params={params} />
        ) : page === "compare" ? (
          <Compare overview={overview} params={params} />
        ) : (
          <OverviewPage overview={overview} hasLinks />
        )}
      </main>
      <footer>
        {session.is_admin ? null : <a href="docs">API</a>} <a href="console/static/licenses.txt">Licences</a>
      </footer>
    </>
  );
}

function App(): JSX.Element {
  const session = useLoad("session", readSession, 60_000);
  const isIn = session.data !== undefined && (!session.data.needs_sign_in || session.data.caller !== null);
  const overview = useLoad(`overview ${isIn}`, async (signal) => (isIn ? get<Overview>("/console/overview", signal) : undefined), 2000);
  const isRefused = overview.error instanceof Refusal && overview.error.status === 401;
  useEffect(() => {
    // The session has ended, so the next look at it leads to the sign-in page.
    if (isRefused) session.again();
  }, [isRefused]);
  if (session.data && !isIn) return <SignIn onDone={session.again} />;
  if (!session.data || !overview.data) {
    const awaited = session.data ? overview : session;
    return (
      <main>
        {awaited.error ? <h1>Embedding server</h1> : null}
        <Status of={awaited} what="this server's models" />
      </main>
    );
  }
  return (
    <>
      {overview.error ? (
        <p class="problem" role="alert">
          {overview.error.message} The page shows what was known before.
        </p>
      ) : null}
      <Shown session={session.data} overview={overview.data} />
    </>
  );
}

render(<App />, document.getElementById("app") as HTMLElement);
