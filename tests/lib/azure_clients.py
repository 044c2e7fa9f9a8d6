# SPDX-License-Identifier: Apache-2.0
#
# azure_clients.py CLIENT ENDPOINT ACCOUNT KEY SAS: lists container "models" below "clients/", and reads 100 bytes from
# offset 1000 of "clients/a b+ü.bin", by a client that is not ours, with the account's key and with a SAS. Prints the
# names, and the bytes in hexadecimal.
import json
import subprocess
import sys
from pathlib import Path

client, endpoint, account, key, sas = sys.argv[1:]
NAME, PREFIX = "clients/a b+ü.bin", "clients/"


def azure_sdk(credential):
    from azure.storage.blob import ContainerClient

    container = ContainerClient(endpoint, "models", credential=credential)
    names = [blob.name for blob in container.list_blobs(name_starts_with=PREFIX, results_per_page=2)]
    return names, container.download_blob(NAME, offset=1000, length=100).readall()


def adlfs(credential):
    from adlfs import AzureBlobFileSystem

    text = f"DefaultEndpointsProtocol=http;AccountName={account};BlobEndpoint={endpoint};" + (
        f"SharedAccessSignature={sas}" if credential == sas else f"AccountKey={key}")
    fs = AzureBlobFileSystem(connection_string=text, skip_instance_cache=True)
    return [f.removeprefix("models/") for f in fs.ls("models/" + PREFIX, detail=False)], fs.cat_file(f"models/{NAME}", 1000, 1100)


def obstore(credential):
    from obstore.store import AzureStore

    own = {"azure_storage_sas_key": sas} if credential == sas else {"azure_storage_account_key": key}
    store = AzureStore("models", config={"azure_storage_account_name": account, "azure_storage_endpoint": endpoint, **own},
                       client_options={"allow_http": True})
    names = [f["path"] for page in store.list(PREFIX) for f in page]
    return names, bytes(store.get_range(NAME, start=1000, length=100))


def rclone(credential):
    own = [f"--azureblob-sas-url={endpoint}?{sas}"] if credential == sas else \
        [f"--azureblob-account={account}", f"--azureblob-key={key}", f"--azureblob-endpoint={endpoint}"]
    run = [str(Path(sys.executable).parent / "rclone"), "--config=/dev/null", "--retries=1", *own]
    names = json.loads(subprocess.run([*run, "lsjson", f":azureblob:models/{PREFIX}"], check=True, capture_output=True).stdout)
    data = subprocess.run([*run, "cat", "--offset=1000", "--count=100", f":azureblob:models/{NAME}"], check=True,
                          capture_output=True).stdout
    return [PREFIX + f["Name"] for f in names], data


CLIENTS = {"azure-storage-blob": azure_sdk, "adlfs": adlfs, "obstore": obstore, "rclone": rclone}
for credential in (key, sas):
    names, data = CLIENTS[client](credential)
    print(",".join(sorted(names)), data.hex())
