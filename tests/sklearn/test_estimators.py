"""The estimators keep scikit-learn's contract, and train over clients."""

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter

from trimtab import Scaffold
from trimtab.algorithms.registry import NAMES
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


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_algorithm_learns_with_its_default_step(tumours, algorithm):
    X, y, site = tumours
    assert FederatedClassifier(algorithm, rounds=20).fit(X, y, groups=site).score(X, y) > 0.9


@pytest.mark.parametrize(
    "load", [load_iris, load_wine, load_breast_cancer, load_digits], ids=lambda load: load.__name__
)
def test_clients_of_one_class_each_learn_them_all(load):
    X, y = load(return_X_y=True)
    assert FederatedClassifier().fit(X, y, groups=y).score(X, y) > 0.95


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


def test_a_grid_search_passes_the_groups_with_routing(tumours, routing):
    X, y, site = tumours
    model = FederatedClassifier(rounds=5)
    requested = FederatedClassifier(rounds=5).set_fit_request(groups=True)
    for estimator in (model, requested):
        search = GridSearchCV(estimator, {"K": [1, 5]}, cv=GroupKFold(3))
        assert len(search.fit(X, y, groups=site).best_estimator_.groups_) == 5
    steps = make_pipeline(StandardScaler(), model)
    search = GridSearchCV(steps, {"federatedclassifier__K": [1, 5]}, cv=GroupKFold(3))
    assert len(search.fit(X, y, groups=site).best_estimator_[-1].groups_) == 5


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
        ({"rounds": 2.0}, "rounds=2.0; pass a whole number of 1 or more"),
        ({"batch": 0}, "batch=0; pass a number of samples"),
        ({"l2": -1.0}, "l2=-1.0; pass a number that is zero or positive"),
        ({"algorithm": Scaffold(eta_l=0.1, K=2)}, "pass its name, as 'scaffold', and its settings"),
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


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (lambda site: np.where(site == 0, np.nan, site), "groups has missing values"),
        (lambda site: np.where(site == 0, None, "rome"), "groups has missing values"),
        (lambda site: np.where(site == 0, 1, np.array("a", object)), "both numbers and words"),
        (lambda site: np.stack([site, site], 1), "groups has shape (569, 2); pass one name"),
        (lambda site: "site", "groups has shape (); pass one name"),
    ],
)
def test_groups_that_do_not_name_every_client_are_refused(tumours, groups, sentence, refused):
    X, y, site = tumours
    with refused(sentence):
        FederatedClassifier().fit(X, y, groups=groups(site))


def test_several_targets_are_refused_and_may_be_wrapped(tumours, refused):
    X, y, site = tumours
    for kind, wrapper in (
        (FederatedClassifier, MultiOutputClassifier),
        (FederatedRegressor, MultiOutputRegressor),
    ):
        Y = np.stack([y, 1 - y], 1)
        with refused("y has 2 columns", f"{wrapper.__name__}({kind.__name__}())"):
            kind().fit(X, Y, groups=site)
        each = wrapper(kind(rounds=5)).fit(X, Y, groups=site).estimators_
        assert [len(model.groups_) for model in each] == [5, 5]


def test_sample_weights_are_not_taken(tumours):
    """As scikit-learn does it: meta-estimators ask the signature of fit."""
    X, y, site = tumours
    assert not has_fit_parameter(FederatedClassifier(), "sample_weight")
    with pytest.raises(TypeError, match="sample_weight"):
        FederatedClassifier().fit(X, y, groups=site, sample_weight=np.ones(len(y)))


def test_frames_go_in_as_they_are(tumours):
    pandas = pytest.importorskip("pandas", reason="pip install 'trimtab[pandas]'")
    X, y, site = tumours
    expected = FederatedClassifier(rounds=5).fit(X, y, groups=site)
    frame = pandas.DataFrame(X, columns=[f"f{j}" for j in range(30)])
    words = pandas.Series(site).map(dict(enumerate(["ams", "bern", "cork", "delft", "essen"])))
    for groups in (words, words.astype("category"), words.to_frame()):
        found = FederatedClassifier(rounds=5).fit(frame, pandas.Series(y), groups=groups)
        np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-6)  # another memory layout
        assert list(found.groups_) == ["ams", "bern", "cork", "delft", "essen"]
        assert list(found.feature_names_in_) == list(frame.columns)
    backwards = frame[::-1], pandas.Series(y)[::-1], words[::-1]
    found = FederatedClassifier(rounds=5).fit(*backwards[:2], groups=backwards[2])
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-6)
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame[frame.columns[::-1]])
