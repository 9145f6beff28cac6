"""Linear models for scikit-learn, trained over clients by an algorithm of trimtab.

`fit(X, y, groups=site)` names the client of each row, so that pipelines, `clone`, `pickle` and
`GridSearchCV` work as with every other estimator.
"""

import warnings
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import nn
from torch.nn import functional as F

from trimtab.algorithms.registry import build, kind
from trimtab.problems import Supervised
from trimtab.simulation import simulate

__all__ = ["FederatedClassifier", "FederatedRegressor"]


class _FederatedLinear(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share: columns are scaled, clients train, one model."""

    # With metadata routing, `fit` gets the groups without set_fit_request(groups=True).
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

    def __init__(
        self,
        algorithm: str = "scaffold",
        *,
        eta_l: float | None = None,
        K: int = 10,
        rounds: int = 100,
        batch: int | None = None,
        l2: float = 1e-3,
        random_state: Any = None,
    ) -> None:
        self.algorithm = algorithm
        self.eta_l = eta_l
        self.K = K
        self.rounds = rounds
        self.batch = batch
        self.l2 = l2
        self.random_state = random_state

    def _train(
        self, X: Any, y: torch.Tensor, groups: Any, outputs: int, loss: Any, curvature: float
    ) -> tuple[Any, Any]:
        """Return coefficients and intercepts, one row for each output, for unscaled columns.

        y: the target, scaled or as labels.
        curvature: a bound on the second derivative of the loss by an output.
        """
        if not isinstance(self.algorithm, str):
            raise ValueError(
                f"algorithm={self.algorithm!r}; pass its name, as 'scaffold', and its settings as "
                "eta_l=… and K=…."
            )
        if not isinstance(self.rounds, Integral) or self.rounds < 1:
            raise ValueError(f"rounds={self.rounds!r}; pass a whole number of 1 or more.")
        if groups is None:
            warnings.warn(
                f"{type(self).__name__}.fit got no groups, so that all rows are one client; pass "
                "groups=…, and for GridSearchCV or cross_validate call "
                "sklearn.set_config(enable_metadata_routing=True) first.",
                stacklevel=3,
            )
            groups = np.zeros(len(X), dtype=int)
        self.groups_, rows = _rows_of(groups, X)
        mean, scale = X.mean(axis=0), X.std(axis=0)
        # The variance of a constant column is zero up to rounding.
        scale = np.where(scale > 1e-12 * np.abs(mean).clip(1e-300), scale, 1.0)
        Z = torch.from_numpy((X - mean) / scale)
        parts = [(Z[each], y[each]) for each in rows]
        module = nn.Linear(Z.shape[1], outputs, dtype=torch.float64)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        problem = Supervised(module, loss, parts, batch=self.batch, l2=self.l2, weights="samples")
        chosen, step = kind(self.algorithm), self.eta_l
        if step is None:
            step = 1 / (curvature * max(_largest_eigenvalue(part) for part, _ in parts) + self.l2)
            # The momentum of 0.9 that such algorithms have adds up ten steps.
            step /= 10 if any(p.name == "base" for p in chosen.parameters) else 1
        algorithm = build(chosen, **{chosen.step: step}, **({"K": self.K} if chosen.has_K else {}))
        seed = int(check_random_state(self.random_state).randint(2**31))
        simulation = simulate(algorithm, problem, seed=seed)
        for _ in range(self.rounds):
            x = next(simulation).x
        self.n_iter_ = self.rounds
        trained = problem.unflatten(x)
        weight = trained["weight"].numpy() / scale
        return weight, trained["bias"].numpy() - weight @ mean


def _rows_of(groups: Any, X: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the names of the clients, sorted, and the rows of each."""
    groups = np.asarray(groups)
    if groups.ndim != 1 and groups.shape != (len(X), 1):
        raise ValueError(f"groups has shape {groups.shape}; pass one name of a client per row.")
    groups = groups.reshape(-1)
    check_consistent_length(X, groups)
    try:
        names, client = np.unique(groups, return_inverse=True)
        clear = all(name == name for name in names)  # NaN is not equal to itself.
    except TypeError:  # None or pandas.NA cannot be sorted among words.
        clear = False
    if not clear:
        raise ValueError(
            "groups has missing values, or both numbers and words; name the client of every row."
        )
    return names, [torch.from_numpy(np.flatnonzero(client == i)) for i in range(len(names))]


def _check_one_target(estimator: Any, y: Any) -> None:
    shape = np.asarray(y).shape
    if len(shape) == 2 and shape[1] > 1:
        kind = "Classifier" if is_classifier(estimator) else "Regressor"
        raise ValueError(
            f"y has {shape[1]} columns and Federated{kind} predicts one; pass one of them, or wrap "
            f"it as sklearn.multioutput.MultiOutput{kind}(Federated{kind}())."
        )


def _largest_eigenvalue(Z: torch.Tensor) -> float:
    """Return the largest eigenvalue of the mean of z z', where z has a 1 for the intercept."""
    z = torch.cat([Z, torch.ones(len(Z), 1, dtype=Z.dtype)], dim=1)
    return float(torch.linalg.matrix_norm(z, 2) ** 2 / len(z))


class FederatedClassifier(ClassifierMixin, _FederatedLinear):  # type: ignore[misc]
    """Logistic regression over clients.

    algorithm: its name, as for `trimtab run`; default "scaffold".
    eta_l: the step size; by default 1/L, where L bounds the curvature of every client's loss.
    K: local steps in a round; default 10.
    rounds: the number of rounds; default 100.
    batch: samples in a mini-batch; by default all of a client.
    l2: the weight of half the squared norm of the coefficients of scaled columns, the intercept
        included; default 1e-3.
    random_state: as in scikit-learn; draws the mini-batches.

    After `fit`: coef_, intercept_, classes_, groups_ (the clients), n_iter_, n_features_in_.

    >>> import numpy as np
    >>> X, site = np.arange(12.0)[:, None], np.arange(12) % 3
    >>> model = FederatedClassifier().fit(X, X[:, 0] > 5, groups=site)
    >>> model.predict([[1.0], [10.0]]), model.groups_
    (array([False,  True]), array([0, 1, 2]))
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train over the clients; groups: the client of each row, by default one for all."""
        _check_one_target(self, y)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y holds one class only; pass two or more classes.")
        target = torch.from_numpy(labels.astype(np.int64))
        # Half of the identity bounds the Hessian of the cross-entropy by the outputs.
        weight, bias = self._train(X, target, groups, len(self.classes_), F.cross_entropy, 0.5)
        if len(self.classes_) == 2:  # As in scikit-learn: one row, for the second class.
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        self.coef_, self.intercept_ = weight, bias
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the log-odds of the second of two classes, else a score of each class."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class."""
        scores = torch.from_numpy(self.decision_function(X))
        if scores.ndim == 1:
            scores = torch.stack([torch.zeros_like(scores), scores], dim=1)
        return torch.softmax(scores, dim=1).numpy()

    def predict(self, X: Any) -> Any:
        """Return the most probable class of each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]


class FederatedRegressor(RegressorMixin, _FederatedLinear):  # type: ignore[misc]
    """Ridge regression over clients; the arguments are those of `FederatedClassifier`.

    After `fit`: coef_, intercept_, groups_ (the clients), n_iter_, n_features_in_.

    >>> import numpy as np
    >>> X, site = np.arange(12.0)[:, None], np.arange(12) % 3
    >>> model = FederatedRegressor(l2=0.0).fit(X, 100 + 3 * X[:, 0], groups=site)
    >>> model.predict([[20.0]]).round(3)
    array([160.])
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train over the clients; groups: the client of each row, by default one for all."""
        _check_one_target(self, y)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = column_or_1d(y, dtype=np.float64)
        mean, scale = y.mean(), y.std() or 1.0
        target = torch.from_numpy((y - mean) / scale)[:, None]
        # The second derivative of the squared error by the output is 2.
        weight, bias = self._train(X, target, groups, 1, F.mse_loss, 2.0)
        self.coef_, self.intercept_ = scale * weight[0], float(scale * bias[0] + mean)
        return self

    def predict(self, X: Any) -> Any:
        """Return the predicted target of each row."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return X @ self.coef_ + self.intercept_
