# SPDX-License-Identifier: Apache-2.0
#
# aws_precedence.py FOLDER URL N: makes N random sets of AWS's variables and shared files, in FOLDER, and prints what
# botocore takes from each: a line of "variables<TAB>profile<TAB>provider access-key<TAB>region<TAB>endpoint". URL serves
# a container's credentials; tokens of web identities are in FOLDER/jwt. "-" is nothing, and an error; "?" is what this
# botocore does not know. Not made are sets where streamerd differs: an incomplete pair of keys, programs, chains of
# roles, and variables that name a profile that is absent and is not needed.
import os
import random
import sys

import botocore.session
from botocore import configprovider
from botocore.exceptions import BotoCoreError

PROVIDERS = {"env": "environment", "shared-credentials-file": "profile", "config-file": "profile", "assume-role": "role",
             "assume-role-with-web-identity": "web identity", "container-role": "container endpoint"}
ROLE = "arn:aws:iam::1:role/"


def settings(chance, name, folder):
    """The lines of a profile in the config file."""
    yield from (f"region = r-{name}",) if chance(0.4) else ()
    yield from (f"endpoint_url = http://all-{name}",) if chance(0.3) else ()
    yield from ("services = mine",) if chance(0.3) else ()
    yield from (f"aws_access_key_id = C{name}", "aws_secret_access_key = s") if chance(0.3) else ()
    if chance(0.3):
        yield f"role_arn = {ROLE}{name}"
        yield "source_profile = base" if chance(0.6) else f"web_identity_token_file = {folder}/jwt"


def files(chance, folder):
    config, credentials = [], []
    for name in ("default", "a", "b"):
        if chance(0.7):
            is_read = chance(0.8) or name == "default"
            config += [f"[profile {name}]" if is_read and name != "default" else f"[{name}]"]
            config += settings(chance, name, folder)
        if chance(0.4):
            credentials += [f"[{name}]", f"aws_access_key_id = K{name}", "aws_secret_access_key = s"]
            credentials += (f"region = k-{name}",) if chance(0.2) else ()
    config += ["[services mine]", "s3 =" if chance(0.7) else "sts =", "  endpoint_url = http://mine"]
    if chance(0.8):
        credentials += ["[base]", "aws_access_key_id = base", "aws_secret_access_key = s"]
    return "\n".join(config) + "\n", "\n".join(credentials) + "\n"


def variables(chance, profile, folder, url):
    if chance(0.25):
        yield from (("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s"))
    if profile and chance(0.4):
        yield "AWS_PROFILE", profile
    if chance(0.3):
        yield "AWS_DEFAULT_REGION", "r-env"
    for name, value in (("AWS_ENDPOINT_URL", "http://env"), ("AWS_ENDPOINT_URL_S3", "http://env-s3")):
        if chance(0.2):
            yield name, value
    if chance(0.25):
        yield from (("AWS_WEB_IDENTITY_TOKEN_FILE", f"{folder}/jwt"), ("AWS_ROLE_ARN", f"{ROLE}env"))
    if chance(0.4):
        yield "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/v1"


def provider_of(session):
    try:
        credentials = session.get_credentials()
        if credentials is None:
            return "-"
        by_key = credentials.method in ("env", "shared-credentials-file", "config-file")
        return PROVIDERS[credentials.method] + (f" {credentials.access_key}" if by_key else "")
    except BotoCoreError:
        return "-"


def endpoint_of(session):
    provider = getattr(configprovider, "ConfiguredEndpointProvider", None)
    if provider is None:
        return "?"
    return provider(session.full_config, session.get_scoped_config(), "s3").provide() or "-"


def main(folder, url, n):
    for i in range(int(n)):
        rng = random.Random(i)

        def chance(probability):
            return rng.random() < probability

        texts = files(chance, folder)
        chosen = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL_STS": url}
        for name, text in zip(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), texts):
            chosen[name] = f"{folder}/{name}-{i}"
            with open(chosen[name], "w") as f:
                f.write(text)
        present = [name for name in ("default", "a", "b") if f"[profile {name}]" in texts[0] or f"[{name}]" in texts[1]]
        profile = rng.choice(present or [None])
        chosen |= dict(variables(chance, profile, folder, url))
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(chosen)
        named = rng.choice(present or [None]) if chance(0.2) else None
        session = botocore.session.Session(profile=named)
        answers = provider_of(session), session.get_config_variable("region") or "-", endpoint_of(session)
        print(" ".join(f"{k}={v}" for k, v in chosen.items()), named or "", *answers, sep="\t", flush=True)


main(*sys.argv[1:])
