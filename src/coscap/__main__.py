from coscap.cli.main import main

main()
