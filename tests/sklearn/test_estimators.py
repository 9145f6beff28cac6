"""The estimators keep scikit-learn's contract, and train over clients."""

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from trimtab.sklearn import FederatedClassifier, FederatedRegressor


@pytest.fixture(scope="module")
def tumours():
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, np.digitize(X[:, 0], [11, 13, 15, 18])


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("estimator", [FederatedClassifier, FederatedRegressor])
def test_the_contract_of_scikit_learn(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its checks fit without groups.
        check_estimator(estimator(rounds=30), on_skip=None)


def test_scaffold_reaches_the_pooled_solution_and_fedavg_does_not():
    X, y = load_diabetes(return_X_y=True)
    site = np.digitize(X[:, 2], [-0.03, 0.0, 0.03])
    Z, target = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    pooled = Ridge(alpha=0.1 / 2 * len(y)).fit(Z, target)
    expected = y.std() * pooled.coef_ / X.std(0)
    how = {"l2": 0.1, "rounds": 1000}
    ours, drifts = (
        FederatedRegressor(name, **how).fit(X, y, groups=site).coef_
        for name in ("scaffold", "fedavg")
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert np.abs(drifts / expected - 1).max() > 0.01


def test_a_classifier_over_five_hospitals(tumours):
    X, y, site = tumours
    model = FederatedClassifier().fit(X, y, groups=site)
    assert model.score(X, y) > 0.95
    assert list(model.groups_) == [0, 1, 2, 3, 4]
    assert (model.coef_.shape, model.intercept_.shape) == ((1, 30), (1,))
    odds = np.log(model.predict_proba(X)[:, 1] / model.predict_proba(X)[:, 0])
    np.testing.assert_allclose(odds, X @ model.coef_[0] + model.intercept_[0], rtol=1e-6)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    again = clone(model).fit(X, y, groups=site)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_a_class_may_be_absent_at_a_site_and_be_a_word():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = FederatedClassifier(rounds=300).fit(X, names, groups=y)
    assert model.score(X, names) > 0.9
    assert model.coef_.shape == (3, 4)


@pytest.mark.parametrize("algorithm", ["sgd", "fedavg", "mime"])
def test_algorithms_by_name(tumours, algorithm):
    X, y, site = tumours
    assert FederatedClassifier(algorithm, rounds=20).fit(X, y, groups=site).score(X, y) > 0.9


def test_mini_batches_follow_random_state(tumours):
    X, y, site = tumours
    fits = [
        FederatedClassifier(batch=16, rounds=3, random_state=seed).fit(X, y, groups=site).coef_
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


def test_pipelines_pass_the_groups(tumours):
    X, y, site = tumours
    steps = make_pipeline(StandardScaler(), FederatedClassifier(rounds=5))
    steps.fit(X, y, federatedclassifier__groups=site)
    assert len(steps[-1].groups_) == 5


def test_a_grid_search_passes_the_groups_when_they_are_requested(tumours, routing):
    X, y, site = tumours
    model = FederatedClassifier(rounds=5).set_fit_request(groups=True)
    search = GridSearchCV(model, {"K": [1, 5]}, cv=GroupKFold(3)).fit(X, y, groups=site)
    assert len(search.best_estimator_.groups_) == 5


def test_a_grid_search_without_routing_is_warned_of(tumours):
    """Without routing the groups split the folds, and fit does not see them."""
    X, y, site = tumours
    search = GridSearchCV(FederatedClassifier(rounds=2), {"K": [1]}, cv=GroupKFold(3), refit=False)
    with pytest.warns(UserWarning, match="all rows are one client; pass groups=…"):
        search.fit(X, y, groups=site)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "scafold"}, "did you mean scaffold"),
        ({"eta_l": -1.0}, "eta_l=-1.0"),
        ({"K": 0}, "K=0, but it counts local steps"),
        ({"rounds": 0}, "rounds=0; pass a whole number of 1 or more"),
    ],
)
def test_wrong_settings_are_one_sentence(tumours, changes, sentence):
    X, y, site = tumours
    with pytest.raises(ValueError, match=sentence):
        FederatedClassifier(**changes).fit(X, y, groups=site)


def test_one_class_and_groups_of_another_length_are_refused(tumours):
    X, y, site = tumours
    with pytest.raises(ValueError, match="one class only; pass two or more"):
        FederatedClassifier().fit(X, 0 * y, groups=site)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier().fit(X, y, groups=site[1:])
