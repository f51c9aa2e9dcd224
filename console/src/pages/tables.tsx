// Table explorer: pages of rows, a row by id or key, hot rows.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Hot, Overview, Page, Refusal, get, tablePath } from "../api";
import { Params, address, setParams, useLoad } from "../hooks";
import { Choice, Grid, Select, Status, TableChoice, hotNote, nameOf, shown, useTables } from "../parts";
import { RowPanel, rowParams } from "../row";

const PAGE_ROWS = 50;

function Rows({ choice, params }: { choice: Choice; params: Params }): JSX.Element {
  const start = Number(params["start"] ?? 0) || 0;
  const table = choice.table?.name ?? "";
  const path = tablePath(choice.model, choice.version, table, `:page?start=${start}&count=${PAGE_ROWS}`);
  const loaded = useLoad(path, (signal) => get<Page>(path, signal));
  const page = loaded.data;
  const total = page?.total ?? 0;
  return (
    <section class="card" aria-label="Rows">
      <h2>Rows</h2>
      <Status of={loaded} what="rows" />
      {page ? (
        <>
          <Grid
            label="Rows of the table"
            rows={page.norms.map((norm, at) => ({ id: start + at, norm, key: page.keys[at], label: page.labels[at] ?? null }))}
            columns={[
              {
                name: "row",
                isNumber: true,
                cell: (row) => <a href={address("tables", { ...rowParams(choice, row.id), start: String(start) })}>{row.id}</a>,
              },
              ...(page.keys.length || page.labels.length ? [{ name: "name", cell: nameOf }] : []),
              { name: "norm", isNumber: true, cell: (row) => shown(row.norm) },
            ]}
          />
          <div class="fields">
            <button type="button" disabled={start === 0} onClick={() => setParams({ start: String(Math.max(start - PAGE_ROWS, 0)) })}>
              Earlier
            </button>
            <span>
              {start} to {Math.min(start + PAGE_ROWS, total) - 1} of {total.toLocaleString("en")}
            </span>
            <button
              type="button"
              disabled={start + PAGE_ROWS >= total}
              onClick={() => setParams({ start: String(start + PAGE_ROWS) })}
            >
              Later
            </button>
          </div>
        </>
      ) : null}
    </section>
  );
}

function HotRows({ choice }: { choice: Choice }): JSX.Element {
  const path = tablePath(choice.model, choice.version, choice.table?.name ?? "", ":hot?k=20");
  const loaded = useLoad(path, (signal) => get<Hot>(path, signal));
  const isUnsampled = loaded.error instanceof Refusal && loaded.error.status === 501;
  return (
    <section class="card" aria-label="Hot rows">
      <h2>Hot rows</h2>
      {isUnsampled ? <p class="faint">{loaded.error?.message}</p> : <Status of={loaded} what="hot rows" />}
      {loaded.data ? (
        <p class="faint">
          {hotNote(loaded.data)}
        </p>
      ) : null}
      <Grid
        label="Rows that are read most"
        rows={loaded.data?.rows ?? []}
        columns={[
          { name: "row", isNumber: true, cell: (row) => <a href={address("tables", rowParams(choice, row.id))}>{row.id}</a> },
          { name: "name", cell: nameOf },
          { name: "lookups", isNumber: true, cell: (row) => shown(row.lookups) },
          { name: "share", isNumber: true, cell: (row) => `${shown(row.share * 100, 3)} %` },
        ]}
      />
    </section>
  );
}

function Find({ choice }: { choice: Choice }): JSX.Element {
  const [by, setBy] = useState("id");
  const [text, setText] = useState("");
  const onSubmit = (event: Event): void => {
    event.preventDefault();
    if (by === "label") setParams({ label: text.trim(), id: "", key: "", feature: "" });
    else setParams({ label: "", ...(by === "id" ? { id: text.trim(), key: "", feature: "" } : { id: "", key: text, feature: by.slice(4) }) });
  };
  const features = choice.table?.features ?? [];
  return (
    <form class="fields" onSubmit={onSubmit} aria-label="Find a row">
      <Select
        label="Find by"
        value={by}
        options={[["id", "row id"], ["label", "part of the label"], ...features.map((one): [string, string] => [`key:${one}`, `key of ${one}`])]}
        onChange={setBy}
      />
      <label class="field">
        <span>{by === "id" ? "Row id" : by === "label" ? "Label" : "Key"}</span>
        <input
          required
          value={text}
          inputMode={by === "id" ? "numeric" : "text"}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <button class="main">Find</button>
    </form>
  );
}

/** The rows whose labels contain a text. */
function Found({ choice, text }: { choice: Choice; text: string }): JSX.Element {
  const path = tablePath(choice.model, choice.version, choice.table?.name ?? "", `:find?${new URLSearchParams({ label: text, count: "20" })}`);
  const loaded = useLoad(path, (signal) => get<{ rows: { id: number; label: string }[] }>(path, signal));
  return (
    <section class="card" aria-label="Found rows">
      <h2>Labels with “{text}”</h2>
      <Status of={loaded} what="labels" />
      {loaded.data && !loaded.data.rows.length ? <p class="faint">No label of this table contains it.</p> : null}
      <ul class="plain">
        {loaded.data?.rows.map((row) => (
          <li key={row.id}>
            <a href={address("tables", { ...rowParams(choice, row.id), label: text })}>{row.label}</a> <span class="faint">row {row.id}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function Tables({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const { models, methods } = overview;
  const { choice, loaded } = useTables(models, params);
  const id = params["id"] ?? "";
  const wanted = params["key"] ?? "";
  return (
    <>
      <h1 tabIndex={-1}>Tables</h1>
      <TableChoice models={models} choice={choice} />
      <Status of={loaded} what="tables" />
      {choice.table ? (
        <>
          <Find choice={choice} />
          <div class="columns">
            <div>
              {params["label"] ? <Found choice={choice} text={params["label"]} /> : null}
              {id || wanted ? (
                <RowPanel choice={choice} id={id} wanted={wanted} feature={params["feature"] ?? ""} methods={methods} />
              ) : (
                <p class="card faint">Choose a row to see its values, norm, provenance and neighbours.</p>
              )}
              {methods.includes("hot") ? <HotRows choice={choice} /> : null}
            </div>
            <Rows choice={choice} params={params} />
          </div>
        </>
      ) : loaded.isLoading || loaded.error ? null : (
        <p class="faint">This model has no tables that the server knows.</p>
      )}
    </>
  );
}
