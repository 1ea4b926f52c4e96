
„	/host:CPU&pythonÀ„="èÀ–±" 	"8"cuLaunchKernel*correlation_id*
hlo_op*	dot.1
‹/device:GPU:03Stream #13(Compute)À„="èÀ–±" 	"8"gemm*correlation_id*
hlo_op*	dot.1