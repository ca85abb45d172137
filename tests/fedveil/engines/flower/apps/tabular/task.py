"""Logistic regression of scikit-learn, whose parameters are arrays in a list."""

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression


def load_data(partition_id, num_partitions):
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    mine = order[:1500][partition_id::num_partitions]
    return x[mine] / 16, y[mine], x[order[1500:]] / 16, y[order[1500:]]


def create_log_reg_and_instantiate_parameters(penalty, local_epochs):
    model = LogisticRegression(C=1.0 / penalty, max_iter=local_epochs, warm_start=True, solver="saga")
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = np.zeros((10, 64)), np.zeros(10)
    return model


def get_model_parameters(model):
    return [model.coef_, model.intercept_]


def set_model_params(model, params):
    model.coef_, model.intercept_ = params
    return model


def fit(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
