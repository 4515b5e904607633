"""Files in object stores, on web servers and on the Hugging Face hub.

    location   what a URL names; its text never contains a secret
    requests   requests with time limits and retries of our own, in a thread that Ctrl-C does not wait for
    store      a client of obstore for a location, and the objects in a folder
    hub        files of the hub: the commit is pinned, the address behind the redirect is read
    cache      blocks of remote files on this machine, if asked for
    source     a remote file as a `burnstore.io.source.Source`
    folder     a location as a file or as a folder

obstore and huggingface_hub are optional (``burnstore[remote]``, ``burnstore[hub]``) and imported when first needed.
"""
