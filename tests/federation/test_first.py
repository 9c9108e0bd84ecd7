import pytest, torch
from tacit.core import Task
from tacit.runs.training import follow
from tacit.engine import Simulation
from tacit.core.keys import SeededKeys
from federation import acme
from federation.consortium import *

@pytest.mark.parametrize("method,args", [("fl-std", dict(cohort=5)), ("fl-std", dict(cohort=5, channel="SecureSum()")), ("fl-std-dp", dict(cohort=5, epsilon=50.0)), ("fl-top", dict(cohort=5, ratio=0.3)),("ifca",dict(cohort=5))])
def test_one(tmp_path, method, args, monkeypatch):
    import tacit.engine.simulation as sim
    monkeypatch.setattr(sim, "divide", lambda cohort, *_: list(cohort[:, None]))
    c = Consortium.at(tmp_path)
    plan = c.plan(method, args=args, public="federation.acme:public")
    c.accept(plan)
    s = server(plan, transport(c.sites(seeded=True)), seeded=True)
    *_, run = follow(s.run_plan, source=s)
    task = Task(model=acme.net, clients=[acme.samples(i) for i in range(5)], public=acme.public())
    *_, (state, report) = Simulation(plan.method, task, seed=acme.SEED).rounds(workers=1, keys=SeededKeys(acme.SEED))
    print(s.problems, run.history[-1])
    assert torch.equal(run.state.weights, state.weights)
