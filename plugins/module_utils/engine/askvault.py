# SPDX-License-Identifier: BSD-2-Clause
"""The program that opens a vault: a process of its own, so that what else the vault holds ends with it.

Standard input is JSON: ``{"data", "password"}``, both in Base64. Standard output is what the vault holds; the exit code
says why it is not: NO_LIBRARY, WRONG_PASSWORD, NO_VAULT. It imports nothing of ASF: ``secretvault`` gives its text to
an interpreter.
"""

import base64
import json
import sys

NO_LIBRARY, WRONG_PASSWORD, NO_VAULT = 81, 82, 83


def main() -> int:
    """Exit code."""
    asked = json.load(sys.stdin)
    try:
        from ansible.errors import AnsibleError  # type: ignore[import-untyped]
        from ansible.parsing import vault  # type: ignore[import-untyped]
    except ImportError:
        return NO_LIBRARY
    data, password = (base64.b64decode(asked[name]) for name in ("data", "password"))
    try:
        held = vault.VaultLib([("default", vault.VaultSecret(password))]).decrypt(data)
    except vault.AnsibleVaultFormatError:
        return NO_VAULT
    except AnsibleError:
        return WRONG_PASSWORD
    sys.stdout.buffer.write(held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
