"use strict";
// The API's documentation, drawn from openapi.json: it works without a network.

function el(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function typeOf(schema) {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const parts = schema.anyOf || schema.oneOf;
  if (parts) return [...new Set(parts.map(typeOf).filter((t) => t !== "null"))].join(" | ");
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  if (schema.type === "array") return `[${typeOf(schema.items)}]`;
  return schema.type || "any";
}

function fields(schema, all) {
  const found = schema && schema.$ref ? all[schema.$ref.split("/").pop()] : schema;
  if (!found || !found.properties) return null;
  const table = el("table"), required = new Set(found.required || []);
  for (const [name, field] of Object.entries(found.properties)) {
    const row = el("tr"), first = el("td");
    first.append(el("code", name), required.has(name) ? " (required)" : "");
    row.append(first, el("td", typeOf(field)), el("td", field.description || ""));
    table.append(row);
  }
  return table;
}

function operation(path, verb, op, schemas) {
  const box = el("section"), title = el("h2");
  title.append(el("span", verb.toUpperCase(), "verb"), " ", el("code", path));
  box.append(title, el("p", op.description || op.summary || ""));
  const params = op.parameters || [];
  if (params.length) {
    const table = el("table");
    for (const p of params) {
      const row = el("tr"), name = el("td");
      name.append(el("code", p.name), ` (${p.in})`);
      row.append(name, el("td", typeOf(p.schema)), el("td", p.description || ""));
      table.append(row);
    }
    box.append(table);
  }
  const content = op.requestBody && op.requestBody.content;
  const body = content && content["application/json"] && fields(content["application/json"].schema, schemas);
  if (body) {
    const details = el("details");
    details.append(el("summary", "body"), body);
    box.append(details);
  }
  const answers = Object.entries(op.responses || {});
  if (answers.length) {
    box.append(el("p", answers.map(([code, a]) => `${code}: ${a.description}`).join(" · ")));
  }
  return box;
}

(async () => {
  const docs = document.getElementById("docs");
  try {
    const response = await fetch("openapi.json");
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    const api = await response.json();
    const schemas = (api.components && api.components.schemas) || {};
    const found = [];
    for (const [path, verbs] of Object.entries(api.paths)) {
      for (const [verb, op] of Object.entries(verbs)) found.push(operation(path, verb, op, schemas));
    }
    docs.replaceChildren(el("p", api.info.description || ""), ...found);
  } catch (error) {
    docs.replaceChildren(el("p", `openapi.json cannot be read: ${error.message}`));
  }
})();
