// SPDX-License-Identifier: BSD-4-Clause

module asf.sandbox/gate

go 1.22
