# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keys of repositories, made with gpg for the tests alone."""
from __future__ import annotations

# A signing subkey beside the primary key, which is no second key
WITH_SUBKEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawI5RBYJKwYBBAHaRw8BAQdAxQ3fefOhIMY1ugsq+VdYwcVIoHD6vrPNR0PY
5f6WOze0GG9uZSA8b25lQGdwdW9wcy5pbnZhbGlkPoiQBBMWCAA4FiEET+g2W5e1
VvmvP4pL8zE5ECQyiMsFAmsCOUQCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AA
CgkQ8zE5ECQyiMuMCAD/cuodIvFbrsjrgF6BN631QeLh8VDL89uHD0rIHtSl9uMA
/ixRQ827MWYoiN5iGrXdmFT9+TX0Cu0UlAGs2XaM4t8BuDMEawI5RBYJKwYBBAHa
Rw8BAQdALD9LnURuK3TABJqeest5nVxNWSmn5JbAoAgVYhNhi9qI7wQYFggAIBYh
BE/oNluXtVb5rz+KS/MxORAkMojLBQJrAjlEAhsCAIEJEPMxORAkMojLdiAEGRYI
AB0WIQQhn02SFW/rTyYy6XPD8K3DSwy7nAUCawI5RAAKCRDD8K3DSwy7nME3AP46
fxIPgD11LI6RYIAPWH7fjkmblTyZ1v5y+d+9PwwkGAEAx5puo35DK0pF1dDBnzlk
JU2AwNSnG8aZRDA1SELZTQlAtQD/SxapEpqOur6bk+xLltUVT5isSWSBfMYvF12W
C41DqVoA/3h2gjwCK6RT736rYZTkCQ69DjbHraPtE+x6K5p9gF0M
=tO+j
-----END PGP PUBLIC KEY BLOCK-----
"""
