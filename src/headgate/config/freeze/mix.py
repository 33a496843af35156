"""Merge the variants of a job, each attribute by its own rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headgate.base.errors import ConfigurationError
from headgate.base.hints import HintedText, hinted
from headgate.config import model
from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.checks import as_list, deep_plain, entries
from headgate.config.files.document import Table, Tagged
from headgate.config.files.source import MEANING
from headgate.config.freeze.resources import Books, UnknownNodeset, flattened_nodesets, unusable_nodeset
from headgate.config.freeze.sections import deep_merge
from headgate.config.keys.job import ANSIBLE_DEFAULT, EXECUTION, JOB, MergeRule
from headgate.config.kinds.stanza import semaphore_names
from headgate.config.parse import Stanza


class VariantRefused(ConfigurationError):
    """Report that a variant cannot be applied. It becomes a configuration error of the item, at `key` of `stanza`."""

    def __init__(self, text: str | HintedText, stanza: Stanza, key: str = "", name: str = MEANING) -> None:
        super().__init__(str(text))
        self.message, self.stanza, self.key, self.name = hinted(text), stanza, key, name


class Mix:
    """Build a job: `apply` one variant after another, then call `frozen`."""

    def __init__(self, name: str, layout: LayoutDefinitions) -> None:
        self.name, self._layout, self._tenant = name, layout, layout.tenant
        self._values: dict[str, Any] = {}
        """Attribute -> current value, as JSON."""
        self._books = Books(layout)
        self._semaphores: dict[str, bool] = {}
        self._required: dict[str, model.RequiredProject] = {}
        self._include_vars: dict[model.IncludeVars, None] = {}
        self._nodeset: tuple[str | Table, Stanza] | None = None
        self._final = self._protected = ""
        """Place that made the job final, and project that made it protected."""
        self._controlled: dict[str, str] = {}
        self._last_name = ""
        self._intermediate = False
        self._inheritance: list[str] = []
        self._last: Stanza | None = None
        self.abstract = False
        self.post_review = False
        self.allowed: frozenset[str] | None = None
        """Canonical names of the projects that may run the job, or None for all. Short names could be ambiguous."""
        self.config_attached = False
        """Whether a config-project attached the job; allowed-projects does not apply then."""

    def apply(self, stanza: Stanza, body: Table, *, of: str, attaching: bool = False) -> None:
        """Apply another variant; `of` is the name of its job. Raise VariantRefused."""
        self._last = stanza
        self._may(stanza, body, of)
        self._merge_values(body)
        self._flags(stanza, body, of)
        # A job does not inherit its parent's description.
        if "description" in body and of == self.name and not attaching:
            self._values["description"] = body["description"]
        self._places(stanza, body, attaching)
        secrets = self._books.add(stanza, body, len(self._inheritance), attaching)
        # Unreviewed code could read these secrets, and child jobs in other projects could add such code.
        if secrets.restrict and not self.post_review:
            self.post_review = True
            if not secrets.passed_only:
                self._narrow([stanza.source.project])
        self._inheritance.append(f"{of} {stanza.source.place}:{body.line}")

    # --- what a variant may set

    def _may(self, stanza: Stanza, body: Table, of: str) -> None:
        changes = [key for key in body if key in EXECUTION]
        where = f"{stanza.place}"
        # This only concerns children, not further variants of the intermediate job.
        if self._intermediate and of != self._last_name and not body.get("abstract"):
            text = f"job {self._last_name} is intermediate; {of}, which inherits from it, must be abstract"
            raise VariantRefused(text, stanza, "parent")
        if self._final and changes:
            text = f"job {self.name} is final ({self._final}); {where} may not change {', '.join(changes)}"
            raise VariantRefused(text, stanza, changes[0])
        if self._protected and changes and stanza.source.project != self._protected:
            text = f"job {self.name} is protected by {self._protected}; {where} may not change {', '.join(changes)}"
            raise VariantRefused(text, stanza, changes[0])
        for key, by in self._controlled.items():
            if key in body:
                raise VariantRefused(f"{key} of job {self.name} is final ({by}); {where} may not set it", stanza, key)
        exposure = self._values.get("secret-exposure")
        if exposure is not None and body.get("secret-exposure", exposure) != exposure:
            text = f"secret-exposure of job {self.name} is already {exposure}; {where} may not change it"
            raise VariantRefused(text, stanza, "secret-exposure")
        if self._protected and body.get("protected") is False:
            raise VariantRefused(f"job {self.name} is protected; {where} may not undo it", stanza, "protected")

    def _flags(self, stanza: Stanza, body: Table, of: str) -> None:
        # A new name means the first variant of a child job, which is abstract only if it sets that itself.
        if of != self._last_name:
            self.abstract, self._intermediate = bool(body.get("abstract")), bool(body.get("intermediate"))
        self._last_name = of
        self.abstract = self.abstract or bool(body.get("abstract"))
        self._intermediate = self._intermediate or bool(body.get("intermediate"))
        self.post_review = self.post_review or bool(body.get("post-review"))
        if body.get("final"):
            self._final = stanza.place
        if body.get("protected"):
            self._protected = stanza.source.project
        for key, rule in (body.get("attribute-control") or {}).items():
            if rule.get("final"):
                self._controlled[key] = stanza.place

    # --- merging

    def _merge_values(self, body: Table) -> None:
        for key, value in body.items():
            rule = JOB[key].merge
            if rule is MergeRule.LAST:
                self._values[key] = value
            elif rule is MergeRule.UNION:
                self._unite(key, value, replace=_is(value, "override"))
            # These lists replace the inherited ones unless the stanza asks to inherit.
            elif key in ("dependencies", "files", "irrelevant-files"):
                self._unite(key, value, replace=not _is(value, "inherit"))
            elif rule is MergeRule.DEEP:
                old = {} if _is(value, "override") else self._values.get(key, {})
                self._values[key] = deep_merge(old, deep_plain(value))
            elif key == "secret-exposure":
                self._values[key] = value
        # The older name of the attribute.
        if "override-branch" in body and "override-checkout" not in body:
            self._values["override-checkout"] = body["override-branch"]

    def _unite(self, key: str, value: Any, *, replace: bool) -> None:
        known: list[Any] = [] if replace else list(self._values.get(key, []))
        # Lists of files may be long: look up strings, which are hashable, in a set.
        words = {one for one in known if isinstance(one, str)}
        known += [one for one in as_list(deep_plain(value)) if one not in (words if isinstance(one, str) else known)]
        self._values[key] = known

    def _places(self, stanza: Stanza, body: Table, attaching: bool) -> None:
        if "nodeset" in body:
            self._nodeset = (body["nodeset"], stanza)
        for name, first in semaphore_names(body):
            # A later variant may change when the semaphore is taken.
            self._semaphores[name] = first
        if _is(body.get("required-projects"), "override"):
            self._required.clear()
        for entry, _ in entries(body.get("required-projects"), 0):
            self._require(stanza, entry)
        if _is(body.get("include-vars"), "override"):
            self._include_vars.clear()
        for entry, _ in entries(body.get("include-vars"), 0):
            self._include_vars[self._variables(stanza, entry)] = None
        # The operator's own projects may attach any job.
        if attaching and stanza.source.trusted:
            self.config_attached = True
        if allowed := as_list(body.get("allowed-projects")):
            self._narrow(p.project for name in allowed if (p := self._tenant.find(name)) is not None)

    def _narrow(self, names: Iterable[str]) -> None:
        known = frozenset(names)
        # A variant can only narrow the set: a child job must not allow a project that its parent excludes.
        self.allowed = known if self.allowed is None else self.allowed & known

    def _require(self, stanza: Stanza, entry: str | Table) -> None:
        name = entry if isinstance(entry, str) else entry["name"]
        project = self._tenant.find(name)
        if project is None:
            raise VariantRefused(self._tenant.why_not(name).after(f"job {self.name}: "), stanza, "required-projects")
        checkout = "" if isinstance(entry, str) else entry.get("override-checkout") or entry.get("override-branch", "")
        self._required[project.project] = model.RequiredProject(project.project, project.connection, checkout)

    def _variables(self, stanza: Stanza, entry: str | Table) -> model.IncludeVars:
        settings: Any = {"name": entry} if isinstance(entry, str) else entry
        shared = {"name": settings["name"], "required": settings.get("required", True)}
        if settings.get("zuul-project"):
            return model.IncludeVars(**shared, zuul_project=True, use_ref=settings.get("use-ref", True))
        if "project" not in settings:
            source = stanza.source
            return model.IncludeVars(
                **shared,
                project=source.project,
                connection=source.connection,
                branch=source.branch,
                trusted=source.trusted,
            )
        project = self._tenant.find(settings["project"])
        if project is None:
            why = self._tenant.why_not(settings["project"])
            raise VariantRefused(why.after(f"job {self.name}: "), stanza, "include-vars")
        return model.IncludeVars(
            **shared, project=project.project, connection=project.connection, trusted=project.trusted
        )

    def beneath(self, variables: dict[str, Any]) -> None:
        """Add variables of the project, or of a manual enqueue, with lower precedence than the current ones."""
        # The job's own variables win.
        self._values["vars"] = deep_merge(variables, self._values.get("vars", {}))

    # --- the result

    @property
    def has_run(self) -> bool:
        return bool(self._books.run)

    def listed(self, key: str) -> list[Any]:
        """Return the current value of a list attribute such as `files`."""
        return list(self._values.get(key, []))

    def value(self, key: str, default: Any) -> Any:
        return self._values.get(key, default)

    def frozen(self, *, noop: bool = False) -> model.FrozenJob:
        """Return the frozen job. Raise VariantRefused."""
        values = self._values
        nodesets = self._nodesets()
        self._no_semaphore_twice()
        version = values.get("ansible-version", self._tenant.default_ansible_version)
        fields = {JOB[key].field: value for key, value in values.items() if JOB[key].field}
        fields |= _image(values.get("image", ""))
        pre_s, timeout_s = fields.get("pre_timeout_s"), fields.get("timeout_s")
        # Different variants may have set the two, so this is no error of one stanza; cap the pre-timeout.
        if pre_s and timeout_s and pre_s > timeout_s > 0:
            fields["pre_timeout_s"] = timeout_s
        # Between its attempts, a job keeps its places in semaphores.
        fields["attempts_max"] = min(fields.get("attempts_max", 3), model.ATTEMPTS_MAX)
        return model.FrozenJob(
            name=self.name,
            description=values.get("description", ""),
            dependencies=self._dependencies(),
            pre_run=tuple(self._books.pre_run),
            run=tuple(self._books.run),
            post_run=tuple(self._books.post_run),
            roles=tuple(dict.fromkeys(role.project for role in self._books.roles)),
            nodeset=nodesets[0],
            nodeset_alternatives=tuple(nodesets[1:]),
            semaphores=tuple(model.JobSemaphore(name, first) for name, first in sorted(self._semaphores.items())),
            required_projects=tuple(self._required.values()),
            override_checkout=values.get("override-checkout", ""),
            vars=values.get("vars", {}),
            extra_vars=values.get("extra-vars", {}),
            host_vars=values.get("host-vars", {}),
            group_vars=values.get("group-vars", {}),
            include_vars=tuple(self._include_vars),
            tags=self._sorted("tags"),
            provides=self._sorted("provides"),
            requires=self._sorted("requires"),
            failure_output=self._sorted("failure-output"),
            include_projects=self._filters("include-projects"),
            exclude_projects=self._filters("exclude-projects"),
            secret_exposure=values.get("secret-exposure", "ignore"),
            ansible_version=str(version or ANSIBLE_DEFAULT),
            ansible_is_named=bool(version),
            post_review=self.post_review,
            noop=noop,
            inheritance=tuple(self._inheritance),
            **fields,
        )

    def _sorted(self, key: str) -> tuple[str, ...]:
        return tuple(sorted(set(self._values.get(key, ()))))

    def _dependencies(self) -> tuple[model.JobDependency, ...]:
        found: dict[str, model.JobDependency] = {}
        for d in self._values.get("dependencies", ()):
            name, soft = (d, False) if isinstance(d, str) else (d["name"], d.get("soft", False))
            found[name] = model.JobDependency(name, soft)
        return tuple(found.values())

    def _filters(self, key: str) -> tuple[model.ProjectFilter, ...] | None:
        if key not in self._values:
            return None
        filters = ({"name": f} if isinstance(f, str) else f for f in self._values[key])
        return tuple(model.ProjectFilter(f.get("type", "name"), f.get("name", "")) for f in filters)

    def _nodesets(self) -> list[model.Nodeset]:
        if self._nodeset is None:
            return [model.Nodeset()]
        given, stanza = self._nodeset
        try:
            found = flattened_nodesets(self._layout, given)
        except UnknownNodeset as unknown:
            text = unknown.message.after(f"job {self.name}: ")
            raise VariantRefused(text, stanza, "nodeset", unknown.kind) from unknown
        if why := next(filter(None, map(unusable_nodeset, found)), ""):
            raise VariantRefused(f"job {self.name}: {why}", stanza, "nodeset")
        return found

    def _no_semaphore_twice(self) -> None:
        for book in (*self._books.pre_run, *self._books.run, *self._books.post_run):
            for name in book.semaphores:
                if name in self._semaphores and self._last is not None:
                    text = f"both job {self.name} and its playbook {book.path} use the semaphore {name!r}"
                    raise VariantRefused(text, self._last)


def _is(value: Any, tag: str) -> bool:
    return isinstance(value, Tagged) and value.tag == tag


def _image(image: str | Table) -> dict[str, str]:
    """Return the fields of `FrozenJob` that select its image."""
    return {"image": image} if isinstance(image, str) else {"image_file": image["build"]}
