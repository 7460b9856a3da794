"""Elastic jobs on Kubernetes: a launcher pod uses the available worker pods as hosts.

    python -m horoscale.kubernetes launch --selector app=digits -- --min-np 2 -np 4 python train.py
    python -m horoscale.kubernetes work digits-launcher:29400

The launcher queries the cluster's API for pods that are ready and not terminating, and connects to
the agents in them. It needs no ssh, and only the permission to list pods. Jobs that are not elastic
need only the variables described in docs/kubernetes.md.
"""
