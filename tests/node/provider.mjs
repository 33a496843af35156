// An OpenID provider as it is certified, with people of the tests: who logs in as NAME is NAME, of the groups in PEOPLE.
import Provider from "oidc-provider";

const people = JSON.parse(process.env.PEOPLE);
const port = Number(process.env.PORT);
const claims = (sub) => ({ sub, name: `${sub} <b>of the tests</b>`, preferred_username: sub, groups: people[sub] ?? [] });
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: JSON.parse(process.env.CLIENTS),
  claims: { openid: ["sub"], profile: ["name", "preferred_username"], groups: ["groups"] },
  scopes: ["openid", "profile", "groups"],
  responseTypes: ["code", "id_token token"],
  clientBasedCORS: () => true,
  cookies: { keys: ["of the tests"] },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => claims(sub) }),
  pkce: { required: () => true },
});
provider.listen(port, "127.0.0.1", () => console.log("listening"));
