"""Helm's own engine on a real cluster.

usage: helm.py install|upgrade|uninstall NAMESPACE KUBECONFIG [CHART VALUES_JSON]

upgrade reuses the installed values (--reset-then-reuse-values); upgrade-reset does not, as `helm upgrade` alone.
"""

import asyncio
import json
import os
import sys
import tempfile


async def run(action, namespace, kubeconfig, chart="", values="{}"):
    from helm_sdkpy import Configuration, GetValues, Install, Uninstall, Upgrade

    config = Configuration(namespace=namespace, kubeconfig=kubeconfig)
    values = json.loads(values)
    if action == "install":
        await Install(config).run("sidetrack", chart, values, wait=False)
    elif action == "upgrade":
        known = await GetValues(config).run("sidetrack") or {}
        for name, value in values.items():
            both = isinstance(value, dict) and isinstance(known.get(name), dict)
            known[name] = {**known[name], **value} if both else value
        await Upgrade(config).run("sidetrack", chart, known, wait=False)
    elif action == "upgrade-reset":
        await Upgrade(config).run("sidetrack", chart, values, wait=False)
    elif action == "uninstall":
        await Uninstall(config).run("sidetrack", wait=False)
    else:
        raise ValueError(__doc__)


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as home:
            for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"):
                os.environ[name] = home
            asyncio.run(run(*sys.argv[1:]))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
