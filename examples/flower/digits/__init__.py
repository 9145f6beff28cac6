"""SCAFFOLD in an app of Flower.

Ten nodes with scikit-learn's digits, sorted by label; five take part in a round. On Ray, with

    flwr run examples/flower --stream \\
        --federation-config "num-supernodes=10 client-resources-num-cpus=1"

it prints after 30 rounds

    accuracy 0.96
"""
