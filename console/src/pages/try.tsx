// Try a lookup or a predict: a form of the signature, and the same request as a program.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { BASE, Overview, Row, Session, Table, get, modelPath, send, tablePath } from "../api";
import { Params, address, setParams, useLoad } from "../hooks";
import { Copied, Select, Status, Wrong, chosenModel, wrongModel } from "../parts";
import { Field, Metadata, Method, bodyOf, exampleOf, fieldsOf, hintOf, programs } from "../signature";
import { Statusz } from "../statusz";

interface Answer {
  status: number;
  version: string;
  milliseconds: number;
  text: string;
}

const MAX_SHOWN = 20_000;

/** Puts line breaks into JSON; a text that browsers can not read, such as with NaN, stays as it is. */
function pretty(text: string): string {
  try {
    text = JSON.stringify(JSON.parse(text), null, 1).replace(/\n\s+(?=-?[\d\]])/g, " ");
  } catch {
    // The answer is shown as it came.
  }
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}\n… ${text.length - MAX_SHOWN} characters more` : text;
}

interface FoundRow {
  id: number;
  label: string | null;
  by: string;
}

const FOUND_ROWS = 6;
// A search begins when nobody has typed for so long.
const TYPED_MS = 300;

/** Finds rows of a feature's table by their labels; gives the id of the chosen row, or its key where the field takes keys. */
function Finder(props: { model: string; version: string; table: string; field: Field; onFound: (value: string) => void }): JSX.Element {
  const { model, version, table, field } = props;
  const [typed, setTyped] = useState("");
  const [text, setText] = useState("");
  useEffect(() => {
    const timer = window.setTimeout(() => setText(typed.trim()), TYPED_MS);
    return () => window.clearTimeout(timer);
  }, [typed]);
  const path = text ? tablePath(model, version, table, `:find?${new URLSearchParams({ text, count: String(FOUND_ROWS) })}`) : "";
  const found = useLoad(path, async (signal) => {
    const rows = path ? (await get<{ rows: FoundRow[] }>(path, signal)).rows : [];
    // A key that the vocabulary lacks finds the row that stands for all such keys.
    return rows.filter((row) => !row.by.startsWith("unknown"));
  });
  const choose = async (row: FoundRow): Promise<void> => {
    let value = String(row.id);
    if (field.dtype === "DT_STRING") {
      const { keys } = await get<Row>(tablePath(model, version, table, `:row?id=${row.id}`));
      value = String(keys[field.name] ?? Object.values(keys)[0] ?? "");
    }
    setTyped("");
    setText("");
    props.onFound(value);
  };
  return (
    <details>
      <summary>Find by label</summary>
      <label class="field">
        <span>Label, or key, of a row of “{table}”</span>
        <input type="search" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && event.preventDefault()} />
      </label>
      {path ? <Status of={found} what="rows" /> : null}
      {path && found.data && !found.data.length ? <p class="faint">No row has it in its label, or as its key.</p> : null}
      <ul class="plain" aria-label={`Rows found for ${field.name}`}>
        {found.data?.map((row) => (
          <li key={row.id}>
            <button type="button" onClick={() => void choose(row)}>
              {row.label ?? `row ${row.id}`}
            </button>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** Returns a field's text with one more value. */
function withValue(old: string, example: string, value: string): string {
  const kept = old.trim() === example ? "" : old.trim();
  return kept ? `${kept}, ${value}` : value;
}

/** A table, and one of its rows as an example; undefined if the server refuses to show it. */
interface Source {
  table: Table;
  row: Row | undefined;
}

// Of a form with more fields, the rest is folded, and their tables' rows are not read.
const MAX_SHOWN_FIELDS = 12;

async function readSources(model: string, version: string): Promise<Source[]> {
  const { tables } = await get<{ tables: Table[] }>(`${modelPath(model, version)}/tables`);
  const sources: Source[] = [];
  for (const table of tables) {
    // Row 0 is often one for padding. One row at a time: the server refuses more than a few requests for rows at once.
    const path = tablePath(model, version, table.name, `:row?id=${Math.min(1, table.vocabulary_size - 1)}`);
    const row = sources.length < MAX_SHOWN_FIELDS ? await get<Row>(path).catch(() => undefined) : undefined;
    sources.push({ table, row });
  }
  return sources;
}

function Form(props: { model: string; version: string; name: string; fields: Field[]; sources: Source[]; session: Session; kind: string }): JSX.Element {
  const { fields, name } = props;
  const sourceOf = (field: Field): Source | undefined => props.sources.find((one) => one.table.features.includes(field.name));
  const example = (field: Field): string => exampleOf(field, String(sourceOf(field)?.row?.keys[field.name] ?? "key"));
  const usual: Method = name.startsWith("lookup") ? "lookup" : "predict";
  // A lookup takes some of its features.
  const start = (field: Field, at: number): string => (usual === "lookup" && at >= MAX_SHOWN_FIELDS ? "" : example(field));
  const [method, setMethod] = useState<Method>(usual);
  const [texts, setTexts] = useState<Record<string, string>>({});
  const [answer, setAnswer] = useState<Answer>();
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    setMethod(usual);
    setTexts((old) => Object.fromEntries(fields.map((field, at) => [field.name, old[field.name] ?? start(field, at)])));
    setAnswer(undefined);
  }, [name, fields]);
  let body = "";
  let fault = "";
  let isEmpty = false;
  try {
    body = bodyOf(method, name, fields, texts);
    isEmpty = fields.length > 0 && fields.every((field) => !texts[field.name]?.trim());
  } catch (error) {
    fault = (error as Error).message;
  }
  const path = `${modelPath(props.model, props.version)}:${method}`;
  // A refusal is about the inputs as they were.
  const forget = (): void => setAnswer((old) => (old?.status === 200 ? old : undefined));
  const onSubmit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    const begin = performance.now();
    try {
      const response = await send("POST", path, body);
      const text = await response.text();
      const milliseconds = performance.now() - begin;
      setAnswer({ status: response.status, version: response.headers.get("X-Model-Version") ?? "", milliseconds, text: pretty(text) });
    } catch (error) {
      setAnswer({ status: 0, version: "", milliseconds: 0, text: (error as Error).message });
    } finally {
      setBusy(false);
    }
  };
  const input = (field: Field): JSX.Element => {
    const { table, row } = sourceOf(field) ?? {};
    return (
    <div class="input" key={field.name}>
    <label class="field">
      <span>
        <strong>{field.name}</strong> <small>{hintOf(field, table, row)}</small>
      </span>
      <textarea
        rows={field.isRagged ? 3 : 1}
        spellcheck={false}
        value={texts[field.name] ?? ""}
        onInput={(event) => {
          const value = event.currentTarget.value;
          setTexts((old) => ({ ...old, [field.name]: value }));
          forget();
        }}
      />
    </label>
    {table ? (
      <Finder
        model={props.model}
        version={props.version}
        table={table.name}
        field={field}
        onFound={(value) => {
          setTexts((old) => ({ ...old, [field.name]: withValue(old[field.name] ?? "", example(field), value) }));
          forget();
        }}
      />
    ) : null}
    </div>
    );
  };
  return (
    <div class="columns">
      <form class="card" onSubmit={(event) => void onSubmit(event)} aria-label="Request">
        <h2>Request</h2>
        <Select
          label="Method"
          value={method}
          options={[
            // A graph's outputs are no vectors of features.
            ...(props.kind === "predict" ? [] : [["lookup", "lookup: vectors by feature"] as [string, string]]),
            ["predict", "predict: any signature"],
          ]}
          onChange={(value) => {
            setMethod(value as Method);
            forget();
          }}
        />
        {fields.slice(0, MAX_SHOWN_FIELDS).map(input)}
        {fields.length > MAX_SHOWN_FIELDS ? (
          <details>
            <summary>{fields.length - MAX_SHOWN_FIELDS} more fields</summary>
            {fields.slice(MAX_SHOWN_FIELDS).map(input)}
          </details>
        ) : null}
        {fault ? (
          <p class="problem" role="alert">
            {fault}
          </p>
        ) : null}
        <p class="faint">
          {isEmpty ? "Fill in a field. " : ""}The page <a href={address("tables", { model: props.model })}>Tables</a> shows all rows.
        </p>
        <button class="main" disabled={isBusy || isEmpty || fault !== ""}>
          Send
        </button>
      </form>
      <div>
        <section class="card" aria-label="Answer" aria-live="polite">
          <h2>Answer</h2>
          {answer ? (
            <>
              <p class={answer.status === 200 ? "" : "problem"}>
                {answer.status || ""} {answer.version ? `from version ${answer.version}` : ""} in {answer.milliseconds.toFixed(1)} ms
              </p>
              <pre tabIndex={0} role="region" aria-label="Body of the answer">
                {answer.text}
              </pre>
            </>
          ) : (
            <p class="faint">Send the request to see its answer.</p>
          )}
        </section>
        {body && props.session.needs_sign_in ? <p class="faint">The programs read your token from the environment variable TOKEN.</p> : null}
        {body
          ? programs({
              origin: location.origin + BASE,
              path,
              model: props.model,
              version: props.version,
              method,
              signature: name,
              body,
              needsToken: props.session.needs_sign_in,
            }).map((one) => <Copied key={one.label} {...one} />)
          : null}
      </div>
    </div>
  );
}

export function Try({ overview, params, session }: { overview: Overview; params: Params; session: Session }): JSX.Element {
  const models = overview.models;
  const mayFind = overview.methods.includes("find");
  const model = chosenModel(models, params);
  const name = model?.name ?? "";
  const available = model?.versions.filter((one) => one.state === "AVAILABLE").map((one) => String(one.version)) ?? [];
  const version = available.includes(params["version"] ?? "") ? (params["version"] ?? "") : "";
  const loaded = useLoad(`${name}/${version || (available[0] ?? "")}`, (signal) => get<Metadata>(`${modelPath(name, version)}/metadata`, signal));
  const signatures = loaded.data?.metadata.signature_def.signature_def ?? {};
  // TensorFlow keeps operations of its own among the signatures, such as __saved_model_init_op.
  const names = Object.keys(signatures).filter((one) => !one.startsWith("__")).sort();
  // Without the right "metadata" on all models, the status page is closed, and no signature is known not to run.
  const seesAll = session.rights.includes("metadata");
  const statusz = useLoad(`statusz ${name}/${version}`, async (signal) => (seesAll ? get<Statusz>("/v1/statusz", signal) : undefined));
  const served = statusz.data?.models[name]?.versions.find((one) => String(one.version) === loaded.data?.model_spec.version);
  const runs = (one: string): boolean => !served || one in (served.signatures ?? {}) && !(one in (served.not_run ?? {}));
  const sources = useLoad(`tables ${name}/${version || (available[0] ?? "")}`, async () => (name && mayFind ? readSources(name, version) : []));
  const asked = params["signature"] ?? "";
  const chosen = names.includes(asked) ? asked : (["serving_default", ...names].find((one) => names.includes(one) && runs(one)) ?? names[0] ?? "");
  const wrong = wrongModel(models, params) || (asked && loaded.data && asked !== chosen ? `${name} has no signature “${asked}”.` : "");
  const fields = useMemo(() => {
    const signature = signatures[chosen];
    return signature ? fieldsOf(signature) : [];
  }, [loaded.data, chosen]);
  return (
    <>
      <h1 tabIndex={-1}>Try</h1>
      {wrong ? <Wrong what={wrong} /> : null}
      <div class="fields">
        <Select label="Model" value={name} options={models.map((one) => one.name)} onChange={(value) => setParams({ model: value, version: "", signature: "" })} />
        <Select
          label="Version"
          value={version}
          options={[["", "latest"], ...available.map((one): [string, string] => [one, one])]}
          onChange={(value) => setParams({ version: value })}
        />
        <Select
          label="Signature"
          value={chosen}
          options={names.map((one): [string, string] => [one, runs(one) ? one : `${one} (this server does not run it)`])}
          onChange={(value) => setParams({ signature: value })}
        />
      </div>
      <Status of={loaded} what="signatures" />
      {chosen && !statusz.isLoading && !sources.isLoading ? <Form key={name} model={name} version={version} name={chosen} fields={fields} sources={sources.data ?? []} session={session} kind={served?.signatures?.[chosen] ?? ""} /> : null}
    </>
  );
}
