"""Plain FedAvg apps of our own, in the form of Flower's quickstarts, with data made on the spot."""
