"""A federation's arguments as tests write them, in the groups in which `Federation` takes them."""

from dataclasses import fields, replace

from fedveil.engines import Budgets, Evaluation, Execution, PerClient, Shared

GROUPS = {"shared": Shared, "evaluation": Evaluation, "execution": Execution, "budgets": Budgets}
CALLED = {"server_budget": "server", "client_budgets": "clients", "policy": "policy"}


def grouped(values):
    """Every name goes to the group that has it; `client_sides` and `validation_clients` join their own."""
    given = dict(values)
    if "client_sides" in given:
        given["method"] = PerClient(given["method"], given.pop("client_sides"))
    if "validation_clients" in given:
        given["stopping"] = replace(given["stopping"], clients=given.pop("validation_clients"))
    spent = {CALLED[name]: given.pop(name) for name in list(given) if name in CALLED}
    for group, kind in GROUPS.items():
        names = [f.name for f in fields(kind) if f.name in given and kind is not Budgets]
        own = {name: given.pop(name) for name in names} | (spent if kind is Budgets else {})
        if own:
            given[group] = kind(**own)
    return given
