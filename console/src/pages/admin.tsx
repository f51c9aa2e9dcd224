// Admin actions, on the admin listener only: labels, versions, rows, and the list of models.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Model, Session, checked, modelPath, post, send } from "../api";
import type { Params } from "../hooks";
import { Confirmed, Problem, Select } from "../parts";
import { RowsForm } from "./rows_form";

function Versions(props: { models: Model[]; isDisabled: boolean; act: (work: () => Promise<string>) => Promise<void> }): JSX.Element {
  const { models } = props;
  const [name, setName] = useState(models[0]?.name ?? "");
  const [version, setVersion] = useState("");
  const model = models.find((one) => one.name === name);
  const versions = [...new Set([...(model?.folders ?? []), ...(model?.versions.map((one) => one.version) ?? [])])].sort((a, b) => b - a).map(String);
  const served = model?.versions.filter((one) => one.state === "AVAILABLE").map((one) => one.version) ?? [];
  // A newer version than the newest served one failed to load.
  const older = versions.find((one) => Number(one) < Math.max(...served));
  const chosen = versions.includes(version) ? version : (older ?? String(served[0] ?? versions[0] ?? ""));
  const failed = model?.versions.filter((one) => one.state === "END" && one.code !== "OK").map((one) => one.version) ?? [];
  const told = (one: string): string => (served.includes(Number(one)) ? " (served now)" : failed.includes(Number(one)) ? " (failed to load)" : "");
  const away = Object.entries(model?.labels ?? {}).filter(([, at]) => String(at) !== chosen);
  const labels = away.length ? ` Requests that name the label ${away.map(([label]) => `“${label}”`).join(" or ")} will fail.` : "";
  const pin = (to: number | null): Promise<void> =>
    props.act(async () => {
      await post(`${modelPath(name)}:pin`, { version: to });
      return to === null ? `${name} serves the versions again that its list of models names.` : `${name} serves version ${to} only.`;
    });
  return (
    <section class="card" aria-label="Versions">
      <h2>Versions</h2>
      <p>To roll back, serve an older version, whose folder must still be there. The next list of models ends a roll-back.</p>
      <div class="fields">
        <Select label="Model to roll back" value={name} options={models.map((one) => one.name)} onChange={setName} />
        <Select label="To version" value={chosen} options={versions.map((one): [string, string] => [one, one + told(one)])} onChange={setVersion} />
        <Confirmed
          label="Roll back"
          isDisabled={props.isDisabled || !chosen}
          question={`Serve version ${chosen} of ${name} only? It is loaded, and then all other versions are unloaded.${labels}`}
          act={() => pin(Number(chosen))}
        />
        <Confirmed
          label="End roll-back"
          isDisabled={props.isDisabled || !name}
          question={`Serve the versions of ${name} again that its list of models names?`}
          act={() => pin(null)}
        />
      </div>
    </section>
  );
}

export function Admin({ models, session, params }: { models: Model[]; session: Session; params: Params }): JSX.Element {
  const [told, setTold] = useState("");
  const [error, setError] = useState<Error>();
  const [name, setName] = useState(models[0]?.name ?? "");
  const [label, setLabel] = useState("");
  const [version, setVersion] = useState("");
  const model = models.find((one) => one.name === name);
  const available = model?.versions.filter((one) => one.state === "AVAILABLE").map((one) => String(one.version)) ?? [];
  const chosen = version === "remove" || available.includes(version) ? version : (available[0] ?? "");
  const labels = Object.keys(model?.labels ?? {});
  const isNew = !labels.includes(label);
  const act = async (work: () => Promise<string>): Promise<void> => {
    setError(undefined);
    setTold("");
    try {
      setTold(await work());
    } catch (caught) {
      setError(caught as Error);
    }
  };
  const change = (): Promise<void> =>
    act(async () => {
      const to = chosen === "remove" ? null : Number(chosen);
      await post(`/v1/models/${encodeURIComponent(name)}/labels/${encodeURIComponent(label)}`, { version: to });
      return to === null ? `The label ${label} of ${name} is removed.` : `The label ${label} of ${name} is version ${to} now.`;
    });
  const reload = (): Promise<void> =>
    act(async () => {
      const answer = (await (await checked(await send("POST", "/v1/config:reload"))).json()) as { models: string[] };
      return `The list of models was read again: ${answer.models.join(", ")}.`;
    });
  return (
    // An error is about the inputs as they were.
    <div onInput={() => setError(undefined)}>
      <h1 tabIndex={-1}>Admin</h1>
      {session.csrf ? null : (
        <p class="problem" role="alert">
          Open this page by an IP address or as localhost, or use --auth_config: without either, a page of another site could act in your name.
        </p>
      )}
      <p role="status">{told}</p>
      <Problem error={error} />
      <section class="card" aria-label="Labels">
        <h2>Labels</h2>
        <div class="fields">
          <Select label="Model of the label" value={name} options={models.map((one) => one.name)} onChange={setName} />
          {labels.length ? (
            <Select label="Label" value={isNew ? "" : label} options={[...labels, ["", "a new label"]]} onChange={(one) => setLabel(one)} />
          ) : null}
          {isNew ? (
            <label class="field">
              <span>{labels.length ? "New label" : "Label"}</span>
              <input value={label} onInput={(event) => setLabel(event.currentTarget.value)} />
            </label>
          ) : null}
          <Select
            label="Label's version"
            value={chosen}
            options={[...available.map((one): [string, string] => [one, one]), ["remove", "no version: remove the label"]]}
            onChange={setVersion}
          />
          <Confirmed
            label="Change label"
            isDisabled={!label || !chosen || !session.csrf}
            question={
              chosen === "remove"
                ? `Remove the label “${label}” of ${name}? Requests that name it will fail.`
                : `Point the label “${label}” of ${name} to version ${chosen}? Requests that name it get that version from now on. The next list of models replaces this.`
            }
            act={change}
          />
        </div>
      </section>
      <Versions models={models} isDisabled={!session.csrf} act={act} />
      <RowsForm models={models} params={params} isDisabled={!session.csrf} act={act} />
      <section class="card" aria-label="List of models">
        <h2>List of models</h2>
        <p>Reads --model_config_file again: new models are loaded, and models that it does not name are unloaded.</p>
        <Confirmed
          label="Reload the list"
          isDisabled={!session.csrf}
          question="Read --model_config_file again, and serve what it lists?"
          act={reload}
        />
      </section>
    </div>
  );
}
