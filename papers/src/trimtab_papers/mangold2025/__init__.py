"""Mangold et al., 2025: FedAvg's bias, and the linear speed-up of SCAFFOLD."""
