// Map: the rows of a table on their two principal components, coloured by norm, traffic, drift or name.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Hot, Model, Overview, TableMap, checked, get, send, tablePath } from "../api";
import { nameLayer } from "../groups";
import { Params, setParams, useLoad } from "../hooks";
import { Select, Status, TableChoice, nameOf, shown, useTables } from "../parts";
import { GROUP_COLORS, Layer, Points, View, ramp } from "../points";
import { RowPanel } from "../row";

const COMPUTING_MS = 500;
const HOT_POLL_MS = 5000;
// Maximal number of hot rows to ask for; the server sends no more.
const HOT_ROWS = 2000;
// Largest distance of the pointer from a point that is told.
const HOVER_PX = 14;
const MAX_FOUND = 50;

/** Loads a document that the server computes in the background; waits for it. */
async function loadComputed<T>(path: string, signal: AbortSignal): Promise<T> {
  for (;;) {
    const response = await checked(await send("GET", path, undefined, signal));
    if (response.status !== 202) return (await response.json()) as T;
    await new Promise((resolve) => setTimeout(resolve, COMPUTING_MS));
    signal.throwIfAborted();
  }
}

function Ramp({ points }: { points: Points }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { groups, name } = points.layer;
  // No point has a value, so all are grey.
  const isEmpty = points.least > points.most;
  const [lowest, highest, least, most] = [points.lowest, points.highest, points.least, points.most].map((value) => shown(value, 3));
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(ramp());
    context.putImageData(image, 0, 0);
  }, [groups === undefined, isEmpty]);
  if (groups) {
    return (
      <ul class="groups" aria-label="Colours">
        {groups.map((group, at) => (
          <li key={group}>
            <svg viewBox="0 0 10 10" aria-hidden="true">
              <circle cx="5" cy="5" r="5" fill={GROUP_COLORS[at]} />
            </svg>
            {group}: {points.layer.values.filter((value) => value === at).length.toLocaleString("en")}
          </li>
        ))}
      </ul>
    );
  }
  if (isEmpty) return <></>;
  return (
    <div class="ramp">
      {name} {least === lowest ? "" : "≤ "}
      {lowest}
      <canvas ref={canvas} width={256} height={1} aria-hidden="true" />
      {most === highest ? "" : "≥ "}
      {highest}
    </div>
  );
}

function Canvas(props: { points: Points; chosen: number; nameAt: (at: number) => string; onChoose: (id: number) => void }): JSX.Element {
  const { points, chosen, nameAt } = props;
  const [tip, setTip] = useState<{ text: string; x: number; y: number } | undefined>(undefined);
  const canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<View>({ x: 0, y: 0, scale: 0 });
  const drag = useRef<{ x: number; y: number; moved: number } | undefined>(undefined);
  const frame = useRef(0);
  const draw = (): void => {
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => {
      const element = canvas.current;
      const context = element?.getContext("2d");
      if (!element || !context) return;
      const ratio = Math.min(window.devicePixelRatio || 1, 2);
      // The canvas has the shape of the points, as far as the window has room for it.
      const height = Math.min(Math.max(element.clientWidth * points.aspect, 240), 0.7 * window.innerHeight);
      element.style.height = `${Math.round(height)}px`;
      element.width = Math.max(Math.round(element.clientWidth * ratio), 1);
      element.height = Math.max(Math.round(element.clientHeight * ratio), 1);
      if (!view.current.scale) view.current = points.whole(element.width, element.height);
      const begin = performance.now();
      const ink = getComputedStyle(document.body).color;
      points.draw(context, view.current, chosen, ink);
      points.write(context, view.current, chosen, ink, nameAt, ratio);
      element.dataset["drawMs"] = (performance.now() - begin).toFixed(1);
      element.dataset["shows"] = points.layer.name;
    });
  };
  useEffect(draw);
  useEffect(() => {
    view.current = { x: 0, y: 0, scale: 0 };
    draw();
  }, [points.map]);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const observer = new ResizeObserver(draw);
    observer.observe(element);
    const onWheel = (event: WheelEvent): void => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), event);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      observer.disconnect();
      element.removeEventListener("wheel", onWheel);
    };
  });
  const at = (event: { offsetX: number; offsetY: number }): [number, number] => {
    const element = canvas.current!;
    const ratio = element.width / Math.max(element.clientWidth, 1);
    const { x, y, scale } = view.current;
    return [x + (event.offsetX * ratio - element.width / 2) / scale, y - (event.offsetY * ratio - element.height / 2) / scale];
  };
  const zoom = (factor: number, event?: { offsetX: number; offsetY: number }): void => {
    const element = canvas.current!;
    const fixed = event ?? { offsetX: element.clientWidth / 2, offsetY: element.clientHeight / 2 };
    const before = at(fixed);
    view.current.scale = Math.min(Math.max(view.current.scale * factor, 20), 1e7);
    const after = at(fixed);
    view.current.x += before[0] - after[0];
    view.current.y += before[1] - after[1];
    draw();
  };
  const choose = (place: [number, number]): void => {
    const found = points.nearest(...place);
    if (found >= 0) props.onChoose(points.map.ids[found]!);
  };
  const move = (x: number, y: number): void => {
    const step = (0.1 * canvas.current!.width) / view.current.scale;
    view.current.x += x * step;
    view.current.y += y * step;
    draw();
  };
  const keys: Record<string, () => void> = {
    ArrowLeft: () => move(-1, 0),
    ArrowRight: () => move(1, 0),
    ArrowUp: () => move(0, 1),
    ArrowDown: () => move(0, -1),
    "+": () => zoom(1.4),
    "-": () => zoom(1 / 1.4),
    Enter: () => choose([view.current.x, view.current.y]),
  };
  return (
    <div class="map">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`Map of ${points.map.ids.length} rows. Arrow keys move, plus and minus zoom, Enter chooses the row at the centre.`}
        onKeyDown={(event) => {
          const act = keys[event.key];
          if (!act) return;
          event.preventDefault();
          act();
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.offsetX, y: event.offsetY, moved: 0 };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (!from) {
            const found = points.nearest(...at(event));
            if (found < 0) return;
            const element = event.currentTarget;
            const [x, y] = points.place(found, view.current, element.width, element.height).map((one) => (one * element.clientWidth) / element.width) as [number, number];
            const isNear = Math.hypot(x - event.offsetX, y - event.offsetY) < HOVER_PX;
            const name = nameAt(found);
            setTip(isNear ? { text: `${name ? `${name}, ` : ""}row ${points.map.ids[found]}`, x: Math.min(x + 10, element.clientWidth - 120), y: y + 10 } : undefined);
            return;
          }
          const ratio = event.currentTarget.width / Math.max(event.currentTarget.clientWidth, 1);
          view.current.x -= ((event.offsetX - from.x) * ratio) / view.current.scale;
          view.current.y += ((event.offsetY - from.y) * ratio) / view.current.scale;
          from.moved += Math.abs(event.offsetX - from.x) + Math.abs(event.offsetY - from.y);
          from.x = event.offsetX;
          from.y = event.offsetY;
          draw();
        }}
        onPointerUp={(event) => {
          if (drag.current && drag.current.moved < 4) choose(at(event));
          drag.current = undefined;
        }}
        onPointerLeave={() => setTip(undefined)}
      />
      {tip ? (
        <span class="tip" ref={(element) => {
          // The page's policy allows no style attributes in its text; scripts may set them.
          if (element) Object.assign(element.style, { left: `${tip.x}px`, top: `${tip.y}px` });
        }}>
          {tip.text}
        </span>
      ) : null}
      <div class="ramp">
        <button type="button" onClick={() => zoom(1.4)} aria-label="Zoom in">
          +
        </button>
        <button type="button" onClick={() => zoom(1 / 1.4)} aria-label="Zoom out">
          −
        </button>
        <button
          type="button"
          onClick={() => {
            view.current = { x: 0, y: 0, scale: 0 };
            draw();
          }}
        >
          Whole map
        </button>
        <Ramp points={points} />
      </div>
    </div>
  );
}

/** The loaded values that the colours of the map show. note: text below the map. */
interface Colors {
  layer: Layer;
  note: string;
}

interface Drift {
  version: number;
  from: number;
  is_aligned: boolean;
  values: (number | null)[];
}

/** The names of the points: keys by feature with a vocabulary, and labels; empty without them. */
interface Names {
  keys: Record<string, (string | number | null)[]>;
  labels: (string | null)[];
}

/** Loads the data of the colours; undefined for norms and names, which the page has. */
async function loadColors(by: string, map: TableMap | undefined, base: string, since: string, signal: AbortSignal): Promise<Hot | Drift | undefined> {
  if (!map) return undefined;
  if (by === "traffic") return get<Hot>(`${base}:hot?k=${HOT_ROWS}`, signal);
  return by === "drift" && since ? loadComputed<Drift>(`${base}:drift?from=${since}`, signal) : undefined;
}

/** Returns the names that a colour groups by: the labels, or the keys of one feature. */
function namesBy(by: string, names: Names | undefined): (string | number | null)[] {
  return by === "label" ? (names?.labels ?? []) : (names?.keys[by.slice(4)] ?? []);
}

function isName(by: string): boolean {
  return by === "label" || by.startsWith("key:");
}

function colorsOf(map: TableMap, by: string, data: Hot | Drift | undefined, names: Names | undefined, text: string): Colors {
  const grey = map.ids.map(() => null);
  if (by === "norm") return { layer: { name: "norm", values: map.norms }, note: "" };
  if (isName(by)) {
    const found = namesBy(by, names);
    if (found.length !== map.ids.length) return { layer: { name: by, values: grey }, note: "" };
    const layer = nameLayer(found, text);
    const none = layer.groups?.length ? "" : " No name has one of these characters, so enter a text below.";
    return { layer, note: text ? "" : `Groups: the part of the name in front of the first “:”, “/”, “|” or “=”.${none}` };
  }
  if (data && "rows" in data) {
    const reads = new Map(data.rows.map((row) => [row.id, row.lookups]));
    const values = map.ids.map((id) => reads.get(id) ?? null);
    const found = values.filter((value) => value !== null).length;
    return {
      layer: { name: "reads", values, isLog: true },
      note: `${found.toLocaleString("en")} of the ${data.rows.length.toLocaleString("en")} hottest rows are on the map; all other rows are grey.`,
    };
  }
  if (data) {
    const turned = data.is_aligned ? "; a rotation of the whole table is no drift" : "";
    return {
      layer: { name: "1 − cosine", values: data.values },
      note: `How far each row turned since version ${data.from}${turned}. Rows that version ${data.from} does not have are grey.`,
    };
  }
  return { layer: { name: by, values: grey }, note: "" };
}

/** Finds the point whose row id is a text, and those whose names contain it; of these, those that begin with it first. */
function matching(text: string, ids: number[], nameAt: (at: number) => string): number[] {
  const wanted = text.toLowerCase();
  const found: [number, number][] = [];
  for (const [at, id] of ids.entries()) {
    const place = nameAt(at).toLowerCase().indexOf(wanted);
    if (String(id) === wanted) found.push([-1, at]);
    else if (place >= 0) found.push([place === 0 ? 0 : 1, at]);
  }
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, at]) => at);
}

function Search(props: { text: string; points: Points; nameAt: (at: number) => string; onChoose: (id: number) => void }): JSX.Element {
  const { text, points, nameAt } = props;
  const found = text ? matching(text, points.map.ids, nameAt) : [];
  return (
    <>
      <label class="field">
        <span>Search for a label, key or row id</span>
        <input type="search" value={text} onInput={(event) => setParams({ text: event.currentTarget.value })} />
      </label>
      {text ? (
        <>
          <p role="status">
            {found.length.toLocaleString("en")} {found.length === 1 ? "row on the map has" : "rows on the map have"} “{text}” as the id or in the name.
          </p>
          <div class="found" role="region" aria-label="Found names" tabIndex={0}>
            <ul class="plain">
              {found.slice(0, MAX_FOUND).map((at) => (
                <li key={at}>
                  <button type="button" onClick={() => props.onChoose(points.map.ids[at]!)}>
                    {[nameAt(at), `row ${points.map.ids[at]}`].filter(Boolean).join(", ")}
                  </button>
                </li>
              ))}
            </ul>
          </div>
        </>
      ) : null}
    </>
  );
}

function ColorChoice(props: { model: Model | undefined; map: TableMap | undefined; names: Names | undefined; methods: string[]; by: string; since: string }): JSX.Element {
  const { model, map, methods, names, by } = props;
  const others = model?.versions.filter((one) => one.state === "AVAILABLE" && one.version !== map?.version) ?? [];
  const labels = (version: number): string => Object.keys(model?.labels ?? {}).filter((label) => model?.labels[label] === version).join(", ");
  const options: [string, string][] = [
    ["norm", "norm"],
    ["traffic", "traffic: rows that are read most"],
    ["drift", "drift since another version"],
    ...(names?.labels.length ? [["label", "label"] as [string, string]] : []),
    ...Object.keys(names?.keys ?? {}).map((feature): [string, string] => [`key:${feature}`, `key of ${feature}`]),
  ];
  return (
    <div class="fields">
      <Select
        label="Colour"
        value={by}
        options={options.filter(([name]) => methods.includes({ traffic: "hot", drift: "drift" }[name] ?? "projection"))}
        onChange={(color) => setParams({ color })}
      />
      {by === "drift" && others.length ? (
        <Select
          label="Since version"
          value={props.since}
          options={others.map((one): [string, string] => [String(one.version), [one.version, labels(one.version)].filter(Boolean).join(" ")])}
          onChange={(since) => setParams({ since })}
        />
      ) : null}
      {by === "drift" && map && !others.length ? <p class="faint">Drift needs another AVAILABLE version of the model; the page Compare reads versions that are only on disk, too.</p> : null}
    </div>
  );
}

export function MapPage({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const { models, methods } = overview;
  const { choice, loaded } = useTables(models, params);
  const path = choice.table ? tablePath(choice.model, choice.version, choice.table.name, ":projection") : "";
  // The latest version may change: the map of another version is another map.
  const model = models.find((one) => one.name === choice.model);
  const latest = model?.versions.find((one) => one.state === "AVAILABLE")?.version;
  const map = useLoad(`${path}#${choice.version || latest}`, async (signal) => (path ? loadComputed<TableMap>(path, signal) : undefined));
  const text = params["text"] ?? "";
  const others = model?.versions.filter((one) => one.state === "AVAILABLE" && one.version !== map.data?.version).map((one) => one.version) ?? [];
  const older = others.filter((one) => one < (map.data?.version ?? 0));
  const since = others.some((one) => String(one) === params["since"]) ? (params["since"] ?? "") : String(older[0] ?? others[0] ?? "");
  const base = map.data ? tablePath(choice.model, String(map.data.version), choice.table?.name ?? "", "") : "";
  const names = useLoad(`${base} names`, async (signal) => (base ? loadComputed<Names>(`${base}:names`, signal) : undefined)).data;
  const asked = params["color"] ?? "norm";
  // The names of another table are no colours of this one.
  const by = isName(asked) && names && !namesBy(asked, names).length ? "norm" : asked;
  const nameAt = (at: number): string => {
    const keys = Object.values(names?.keys ?? {}).find((one) => one[at] != null);
    return nameOf({ id: map.data?.ids[at] ?? -1, label: names?.labels[at] ?? null, key: keys?.[at] }, choice.table);
  };
  const data = useLoad(
    `${base} ${by} ${by === "drift" ? since : ""}`,
    (signal) => loadColors(by, map.data, base, since, signal),
    by === "traffic" ? HOT_POLL_MS : 0,
  );
  const colors = useMemo(() => (map.data ? colorsOf(map.data, by, data.data, names, text) : undefined), [map.data, by, data.data, names, text]);
  const points = useMemo(() => (map.data && colors ? new Points(map.data, colors.layer) : undefined), [map.data, colors]);
  const id = params["id"] ?? "";
  const choose = (chosen: number): void => setParams({ id: String(chosen) });
  return (
    <>
      <h1 tabIndex={-1}>Map</h1>
      <TableChoice models={models} choice={choice} loaded={loaded} />
      <ColorChoice model={model} map={map.data} names={names} methods={methods} by={by} since={since} />
      {path ? <Status of={map} what="the map, which the server computes once per version" /> : null}
      {map.data ? <Status of={data} what="the colours" /> : null}
      {points ? (
        <div class="columns mapped">
          <section class="card" aria-label="Map">
            <Canvas
              points={points}
              chosen={id ? points.map.ids.indexOf(Number(id)) : -1}
              nameAt={nameAt}
              onChoose={choose}
            />
            {colors?.note ? <p>{colors.note}</p> : null}
            <p class="faint">
              {points.map.ids.length.toLocaleString("en")} of {points.map.total.toLocaleString("en")} rows of version {points.map.version}, on
              the two directions of most variance ({points.map.explained.map((share) => `${(share * 100).toFixed(1)} %`).join(" and ")}).
            </p>
            <p role="status" class="faint">
              {id ? `Row ${id} is chosen.` : ""}
            </p>
          </section>
          <div>
            <section class="card" aria-label="Search">
              <Search text={text} points={points} nameAt={nameAt} onChoose={choose} />
            </section>
            {id ? (
              <RowPanel choice={choice} id={id} methods={methods} />
            ) : (
              <p class="card faint">Point at a row to see its name, and click it to see its values and neighbours.</p>
            )}
          </div>
        </div>
      ) : null}
    </>
  );
}
