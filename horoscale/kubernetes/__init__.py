"""Elastic jobs on Kubernetes: a launcher pod whose hosts are the worker pods that there are.

    python -m horoscale.kubernetes launch --selector app=digits -- --min-np 2 -np 4 python train.py
    python -m horoscale.kubernetes work digits-launcher:29400

The launcher asks the cluster's API which pods are ready and not about to go, and reaches them
through the agents in them: it needs no ssh, and no right but to list pods. Jobs that are not
elastic need none of this, but the variables of docs/kubernetes.md.
"""
