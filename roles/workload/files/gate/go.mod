module asf.sandbox/gate

go 1.22
